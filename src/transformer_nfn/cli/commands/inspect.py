"""`tnfn inspect`: what a checkpoint is."""

from dataclasses import asdict

import typer

from transformer_nfn.cli import adapters
from transformer_nfn.cli.checkpoints import (
    Blocks,
    ConfigFile,
    FamilyFile,
    Options,
    Source,
    open_checkpoint,
)
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.terminal import say, say_json


def inspect(
    path: Source,
    config: ConfigFile = None,
    options: Options = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Show a checkpoint's family, sizes, symmetry group, and the health of heads and neurons.

    Exit code 1 if it has NaN or infinite numbers, or cannot be read.

    Example: tnfn inspect model.safetensors
    """
    if adapters.are_adapters(path):
        facts = adapters.describe(path)
        show(facts, as_json)
        raise typer.Exit(1 if facts["not_finite"] else 0)
    from transformer_nfn.identity import PARTS, inspect_checkpoint

    with (
        open_checkpoint(path, config, options, family) as checkpoint,
        Blocks(checkpoint.blocks, "blocks", disable=as_json) as progress,
    ):
        found = inspect_checkpoint(checkpoint, progress)
    bad = sum(block.not_finite for block in found.health) + sum(found.not_finite.values())
    if as_json:
        say_json({**asdict(found), "dimension": found.dimension})
    else:
        sizes = ", ".join(f"{name} {size}" for name, size in found.sizes.items())
        say(f"{path}: {found.family}, {found.parameters:,} parameters in {found.dtype}")
        say(f"  {found.blocks} blocks, {sizes}")
        say(f"  {', '.join(f'{n} {v}' for n, v in found.settings.items() if v is not None)}")
        say(f"  heads: {', '.join(found.heads) or 'none, it gives hidden states'}")
        if found.unknown:
            say(f"  tensors nobody knows: {', '.join(found.unknown[:5])}")
        say()
        say(f"symmetries, {found.dimension:,} dimensions in all")
        for name, dimension in found.group.items():
            size = f"{dimension:,}" if dimension else "discrete"
            say(f"  {name:<11}{size:>12}  {PARTS[name].what}")
        say()
        say("block  rank QK  condition  rank VO  condition  dead neurons  NaN")
        for number, block in enumerate(found.health):
            say(
                f"{number:>5}  {block.qk_rank:>7}  {block.qk_condition:>9.3g}  {block.vo_rank:>7}"
                f"  {block.vo_condition:>9.3g}  {block.dead_neurons:>12}  {block.not_finite:>3}"
            )
        for name, count in found.not_finite.items():
            say(f"{name} has {count} numbers that are NaN or infinite", err=True)
    if bad:
        raise typer.Exit(1)
