"""`tnfn reparam`: another member of a checkpoint's orbit."""

from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli import adapters
from transformer_nfn.cli.checkpoints import ConfigFile, FamilyFile, Options, Source, open_checkpoint
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.early import check_there


def reparam(
    path: Source,
    out: Annotated[Path, typer.Option(help="A .safetensors file, or a folder.")],
    seed: Annotated[int, typer.Option(help="Seed of the random group element.")] = 0,
    parts: Annotated[
        str | None,
        typer.Option(help="Parts of the group, with commas; all if not given. See `tnfn inspect`."),
    ] = None,
    condition: Annotated[
        float, typer.Option(min=1, help="Condition number of the random matrices.")
    ] = 10,
    config: ConfigFile = None,
    options: Options = None,
    family: FamilyFile = None,
    as_json: Json = False,
) -> None:
    """Write other weights with the same function.

    A random symmetry of the checkpoint's group is applied in float64 and rounded once. Where the
    basis changes, a head that is tied to the embedding gets a tensor of its own.

    Example: tnfn reparam model.safetensors --seed 1 --parts heads,qk,vo --out other/
    """
    check_there(path, config)
    if adapters.are_adapters(path):
        show(adapters.move(path, out, seed, condition), as_json)
        return
    import torch

    from transformer_nfn.identity import apply_element, random_net_element, symmetry_parts

    with open_checkpoint(path, config, options, family) as checkpoint:
        chosen = parts.split(",") if parts else list(symmetry_parts(checkpoint))
        generator = torch.Generator().manual_seed(seed)
        element = random_net_element(checkpoint, generator, parts=chosen, condition=condition)
        written = apply_element(checkpoint, element, out)
    show({"wrote": str(written), "parts": chosen, "seed": seed, "condition": condition}, as_json)
