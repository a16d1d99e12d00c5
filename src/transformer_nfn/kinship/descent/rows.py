"""Files that no family reads, compared by rows that are the same, bit for bit: no reader is needed.

A copy may have other names, transposed matrices, queries, keys and values in one tensor, another
vocabulary: its rows are still those of the other, or its columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt64
from torch import Tensor

from transformer_nfn.checkpoints import TensorFiles

#: Rows of fewer numbers than this say little.
_NUMBERS = 8
#: Numbers that are in memory at once, beside a tensor.
_AT_ONCE = 2**22


@dataclass(frozen=True)
class SharedRows:
    """How much of two files is the same.

    Attributes:
        ours: The part of the numbers of A that are in rows which B has, as rows or columns.
        theirs: The part of the numbers of B that are in rows which A has.
        tensors: Tensors of A all of whose rows B has.
        of: How many tensors of A have rows that could tell.
    """

    ours: float
    theirs: float
    tensors: int
    of: int


def shared_rows(ours: TensorFiles, theirs: TensorFiles) -> SharedRows:
    """Look for the rows of each file in the other."""
    share, whole, count = _found(ours, _known(theirs))
    return SharedRows(share, _found(theirs, _known(ours))[0], whole, count)


def _found(files: TensorFiles, known: dict[int, set[int]]) -> tuple[float, int, int]:
    """The share of a file's numbers that are known, and its tensors that are, of how many."""
    numbers = total = whole = count = 0
    for rows in _matrices(files):
        told, width = _tell(rows), rows.shape[1]
        if not told.any():
            continue
        hashes = np.concatenate(list(_hashes(rows)))[told.numpy()]
        same = sum(each in known.get(width, ()) for each in hashes.tolist())
        numbers, total = numbers + same * width, total + len(hashes) * width
        whole, count = whole + (same == len(hashes)), count + 1
    return (numbers / total if total else 0.0), whole, count


def _known(files: TensorFiles) -> dict[int, set[int]]:
    """Of all rows and columns their hashes, by how many numbers they have."""
    known: dict[int, set[int]] = {}
    for matrix in _matrices(files):
        for rows in (matrix, matrix.T):
            if rows.shape[1] >= _NUMBERS:
                some = known.setdefault(rows.shape[1], set())
                for hashes in _hashes(rows):
                    some.update(hashes.tolist())
    return known


def _matrices(files: TensorFiles) -> Iterator[Float[Tensor, "r w"]]:
    """Every tensor of numbers as rows; a vector is one row."""
    for name in files:
        entry = files.entry(name)
        if entry.dtype.is_floating_point and entry.shape and 0 not in entry.shape:
            tensor = files.read(name).float()
            rows = tensor[None] if tensor.dim() == 1 else tensor.flatten(1)
            if rows.shape[1] >= _NUMBERS:
                yield rows


def _tell(rows: Float[Tensor, "r w"]) -> Tensor:
    """Which rows have more than a few numbers over and over: zeros and ones are everybody's."""
    return (rows[:, 1:] != rows[:, :-1]).float().mean(dim=1) > 0.5


def _hashes(rows: Float[Tensor, "r w"]) -> Iterator[UInt64[np.ndarray, " r"]]:
    """A hash of the bits of each row, with random factors that nobody knows before."""
    factors = _factors(rows.shape[1])
    step = max(1, _AT_ONCE // rows.shape[1])
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        bits = (some + 0.0).contiguous().numpy().view(np.uint32)  # -0 is 0
        yield (bits * factors).sum(axis=1, dtype=np.uint64)


_SECRET = np.random.SeedSequence().generate_state(1)[0]


def _factors(width: int) -> UInt64[np.ndarray, " w"]:
    generator = np.random.default_rng([int(_SECRET), width])
    return generator.integers(0, 2**64, width, dtype=np.uint64) | np.uint64(1)
