"""`tnfn nearest`: which of many known checkpoints a file is a copy or kin of."""

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_nfn.cli.common import Json
from transformer_nfn.cli.early import check_there
from transformer_nfn.cli.names import common_folder, short
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json
from transformer_nfn.cli.wording import counted

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
    """Find the known checkpoints nearest to a file.

    Copies in disguise first, then related ones.

    Only those of the same architecture and sizes are compared; all of these are, so nothing is
    missed. The file itself is left out. Exit code 1 if there is none of its shape.

    Example: tnfn nearest model.safetensors prints/
    """
    check_there(checkpoint, prints)
    from transformer_nfn.hub import Results, stored_index
    from transformer_nfn.kinship import fingerprint

    results = Results(prints)
    index = stored_index(results)
    one = fingerprint(checkpoint, blocks=results.task["blocks"])
    itself = _file_of(one.path)
    others = (
        near for near in index.nearest(one, top + 1) if _real(index.paths[near.file]) != itself
    )
    found = list(islice(others, top))
    if as_json:
        rows = [
            {"path": index.paths[near.file], "relation": near.kinship, "distance": near.distance}
            for near in found
        ]
        say_json({"path": one.path, "shape": one.shape, "nearest": rows})
    elif found:
        _show(index, found)
    else:
        say(f"no other of {counted(len(index), 'file')} has the shape {one.shape}")
    if not found:
        raise typer.Exit(1)


def _file_of(path: str) -> str:
    """The file by which a folder of results knows a checkpoint: its index, or its only file."""
    from transformer_nfn.checkpoints import find_files

    if "://" in path:
        return path
    files, index = find_files(Path(path))
    return os.path.realpath(str(index or files[0]))


def _real(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


def _show(index: "Index", found: "list[Neighbour]") -> None:
    paths = [index.paths[near.file] for near in found]
    folder = common_folder(paths)
    print_table(
        ("path", "relation", "distance"),
        (
            (short(path, folder), near.kinship.value, f"{near.distance:.1e}")
            for near, path in zip(found, paths, strict=True)
        ),
        right=("distance",),
    )
