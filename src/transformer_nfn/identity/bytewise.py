"""Whether two checkpoints hold the same bytes, read side by side, a few megabytes at a time."""

from enum import Enum

import torch

from transformer_nfn.checkpoints import Checkpoint, TensorFiles

#: Bytes of each file that are in memory at once.
_PIECE = 2**24


class Sameness(Enum):
    """What is the same of two checkpoints."""

    BYTES = "bytes"
    TENSORS = "tensors"


def same_numbers(ours: Checkpoint, theirs: Checkpoint) -> Sameness | None:
    """Whether the files are the same, or at least all tensors, bit for bit; None if neither.

    Every byte is read once at most, from a disk or from behind a URL.
    """
    one, two = ours.files, theirs.files
    if set(one) != set(two) or not all(_same_kind(one, two, name) for name in one):
        return None
    if not all(_same_bits(one, two, name) for name in one):
        return None
    return Sameness.BYTES if _same_files(one, two) else Sameness.TENSORS


def _same_kind(one: TensorFiles, two: TensorFiles, name: str) -> bool:
    a, b = one.entry(name), two.entry(name)
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _same_bits(one: TensorFiles, two: TensorFiles, name: str) -> bool:
    pieces = zip(one.pieces(name, _PIECE), two.pieces(name, _PIECE), strict=True)
    return all(torch.equal(a, b) for a, b in pieces)


def _same_files(one: TensorFiles, two: TensorFiles) -> bool:
    """Whether the files of the same tensors are the same: what is not tensors is the header."""
    if not (one.whole and two.whole) or len(one.shards) != len(two.shards):
        return False
    numbers = range(len(one.shards))
    if not all(torch.equal(one.header_bytes(n), two.header_bytes(n)) for n in numbers):
        return False
    if one.config is None and two.config is None:
        return True
    # Tensors of GGUF are made of its bytes, and several bytes may make the same.
    return all(
        torch.equal(a, b)
        for n in numbers
        for a, b in zip(one.data_pieces(n, _PIECE), two.data_pieces(n, _PIECE), strict=True)
    )
