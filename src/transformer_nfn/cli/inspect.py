"""`tnfn inspect`: what a checkpoint is."""

import json
from dataclasses import asdict

import typer

from transformer_nfn.cli.checkpoints import Blocks, ConfigFile, Options, Source, open_checkpoint
from transformer_nfn.cli.common import Json


def inspect(
    path: Source,
    config: ConfigFile = None,
    options: Options = None,
    as_json: Json = False,
) -> None:
    """Show a checkpoint's family, sizes, symmetry group, and the health of heads and neurons.

    Exit code 1 if it has NaN or infinite numbers, or cannot be read.

    Example: tnfn inspect model.safetensors
    """
    from transformer_nfn.identity import PARTS, inspect_checkpoint

    with (
        open_checkpoint(path, config, options) as checkpoint,
        Blocks(checkpoint.blocks, "blocks", disable=as_json) as progress,
    ):
        found = inspect_checkpoint(checkpoint, progress)
    bad = sum(block.not_finite for block in found.health) + sum(found.not_finite.values())
    if as_json:
        typer.echo(json.dumps({**asdict(found), "dimension": found.dimension}))
    else:
        sizes = ", ".join(f"{name} {size}" for name, size in found.sizes.items())
        typer.echo(f"{path}: {found.family}, {found.parameters:,} parameters in {found.dtype}")
        typer.echo(f"  {found.blocks} blocks, {sizes}")
        typer.echo(f"  {', '.join(f'{n} {v}' for n, v in found.settings.items() if v is not None)}")
        typer.echo(f"  heads: {', '.join(found.heads) or 'none, it gives hidden states'}")
        if found.unknown:
            typer.echo(f"  tensors nobody knows: {', '.join(found.unknown[:5])}")
        typer.echo(f"\nsymmetries, {found.dimension:,} dimensions in all")
        for name, dimension in found.group.items():
            size = f"{dimension:,}" if dimension else "discrete"
            typer.echo(f"  {name:<11}{size:>12}  {PARTS[name].what}")
        typer.echo("\nblock  rank QK  condition  rank VO  condition  dead neurons  NaN")
        for number, block in enumerate(found.health):
            typer.echo(
                f"{number:>5}  {block.qk_rank:>7}  {block.qk_condition:>9.3g}  {block.vo_rank:>7}"
                f"  {block.vo_condition:>9.3g}  {block.dead_neurons:>12}  {block.not_finite:>3}"
            )
        for name, count in found.not_finite.items():
            typer.echo(f"{name} has {count} numbers that are NaN or infinite", err=True)
    if bad:
        raise typer.Exit(1)
