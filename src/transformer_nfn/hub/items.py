"""What counts as one checkpoint in a folder, and how its version is told.

A checkpoint is a `.safetensors` or `.gguf` file, or an index with its shards; config.json beside it
belongs to it, since it says what the tensors mean. Its version is the size and the stamp (time of
modification or ETag) of each of its files: whoever changes one of them changes the version.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from transformer_nfn.checkpoints import SINGLES

INDEX = ".safetensors.index.json"
CONFIG = "config.json"
#: Mostly of five digits; those of DeepSeek-V3 are `-00001-of-000163`.
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")


class Piece(NamedTuple):
    """One file: its size, and what changes when it does."""

    size: int
    stamp: str


class Item(NamedTuple):
    """One checkpoint: where it is, bytes of its weights, its version."""

    path: str
    size: int
    version: str


def is_piece(name: str) -> bool:
    """Whether a file may belong to a checkpoint; hidden ones are unfinished."""
    if name.startswith("."):
        return False
    return name.endswith((*SINGLES, INDEX)) or name == CONFIG


def items_of(folder: str, pieces: Mapping[str, Piece]) -> Iterator[Item]:
    """The checkpoints among the files of one folder.

    Args:
        folder: What stands before the names, with its slash.
        pieces: The files for which `is_piece`, by name.

    Example:
        >>> found = {"a.safetensors": Piece(8, "1"), "config.json": Piece(2, "1")}
        >>> list(items_of("nets/", found))
        [Item(path='nets/a.safetensors', size=8, version='8:1+2:1')]
    """
    shards = []
    if any(name.endswith(INDEX) for name in pieces):
        shards = sorted(name for name in pieces if _SHARD.search(name))
    hidden = {*shards, CONFIG}
    config = [pieces[CONFIG]] if CONFIG in pieces else []
    for name, piece in pieces.items():
        if name in hidden:
            continue
        if name.endswith(INDEX):
            parts = [pieces[shard] for shard in shards]
            size = sum(part.size for part in parts)
            yield Item(folder + name, size, version_of([piece, *parts, *config]))
        else:
            yield Item(folder + name, piece.size, version_of([piece, *config]))


def version_of(pieces: list[Piece]) -> str:
    """The version of all files together; of many a digest."""
    text = "+".join(f"{piece.size}:{piece.stamp}" for piece in pieces)
    return text if len(pieces) <= 2 else hashlib.sha256(text.encode()).hexdigest()[:32]
