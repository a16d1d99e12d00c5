"""`tnfn nearest`: which of many known checkpoints a file is a copy or kin of."""

from typing import TYPE_CHECKING, Annotated

import typer

from transformer_nfn.cli.common import Json
from transformer_nfn.cli.names import common_folder, short
from transformer_nfn.cli.terminal import say, say_json

if TYPE_CHECKING:
    from transformer_nfn.kinship import Index, Neighbour


def nearest(
    checkpoint: Annotated[
        str, typer.Argument(help="A .safetensors or .gguf file, a folder, or a URL.")
    ],
    prints: Annotated[str, typer.Argument(help="A FOLDER that `tnfn fingerprint --out` made.")],
    top: Annotated[int, typer.Option(min=1, help="How many to name.")] = 10,
    as_json: Json = False,
) -> None:
    """Name the known checkpoints nearest to a file: copies in disguise first, then kin.

    Only those of the same architecture and sizes are compared. All are, so nothing is missed. Exit
    code 1 if there is none of its shape.

    Example: tnfn nearest model.safetensors prints/
    """
    from transformer_nfn.hub import Results, stored_index
    from transformer_nfn.kinship import fingerprint

    results = Results(prints)
    index = stored_index(results)
    one = fingerprint(checkpoint, blocks=results.task["blocks"])
    found = index.nearest(one, top)
    if as_json:
        rows = [
            {"path": index.paths[near.file], "distance": near.distance, "kinship": near.kinship}
            for near in found
        ]
        say_json({"path": one.path, "shape": one.shape, "nearest": rows})
    elif found:
        _show(index, found)
    else:
        say(f"none of {len(index)} files has the shape {one.shape}")
    if not found:
        raise typer.Exit(1)


def _show(index: "Index", found: "list[Neighbour]") -> None:
    paths = [index.paths[near.file] for near in found]
    folder = common_folder(paths)
    width = max(len(near.kinship.value) for near in found)
    for near, path in zip(found, paths, strict=True):
        say(f"{near.kinship.value:<{width}}  {near.distance:.1e}  {short(path, folder)}")
