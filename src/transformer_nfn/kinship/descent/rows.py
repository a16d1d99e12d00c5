"""Files that no family reads, compared by rows that are the same, bit for bit: no reader is needed.

A copy may have other names, transposed matrices, queries, keys and values in one tensor, another
vocabulary: its rows are still those of the other, or its columns. Rows that anybody may have say
nothing: zeros and ones, few numbers over and over, sines and cosines, frequencies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt64
from torch import Tensor

from transformer_nfn.checkpoints import CheckpointError, TensorFiles

#: Rows of fewer numbers than this say little.
_NUMBERS = 8
#: Numbers that are looked at at once, beside a tensor.
_AT_ONCE = 2**22


@dataclass(frozen=True)
class SharedRows:
    """How much of two files is the same.

    Attributes:
        ours: The part of the telling numbers of A that are in rows or columns which B has.
        theirs: The part of those of B that A has.
        of_smaller: That of the file with fewer telling numbers.
        rows: Rows of the smaller that the other has.
        known: The part of the bytes of the smaller that these numbers are.
        tensors: Tensors of A all of whose telling rows B has.
        of: How many tensors of A have such rows.
    """

    ours: float
    theirs: float
    of_smaller: float
    rows: int
    known: float
    tensors: int
    of: int


@dataclass
class _Tally:
    numbers: int = 0
    found: int = 0
    rows: int = 0
    bytes: int = 0
    whole: int = 0
    tensors: int = 0

    @property
    def share(self) -> float:
        return self.found / self.numbers if self.numbers else 0.0


class _Hashed(NamedTuple):
    """The telling rows of a tensor, or its columns: how long they are, their hashes, bytes."""

    width: int
    hashes: UInt64[np.ndarray, " h"]
    itemsize: int


def shared_rows(ours: TensorFiles, theirs: TensorFiles) -> SharedRows:
    """Look for the rows of each file in the other."""
    both = [list(_hashed(files)) for files in (ours, theirs)]
    one, two = (_looked(both[way], _known(both[1 - way])) for way in (0, 1))
    less, smaller = (one, ours) if one.numbers <= two.numbers else (two, theirs)
    size = sum(entry.end - entry.begin for entry in smaller.entries.values())
    return SharedRows(
        one.share,
        two.share,
        less.share,
        less.rows,
        less.bytes / max(size, 1),
        one.whole,
        one.tensors,
    )


def _hashed(files: TensorFiles) -> Iterator[list[_Hashed]]:
    """Of each tensor its rows and its columns, those that tell."""
    for matrix, itemsize in _matrices(files):
        ways = [
            _Hashed(rows.shape[1], np.concatenate(list(_hashes(rows))), itemsize)
            for rows in (matrix, matrix.T)
            if rows.shape[1] >= _NUMBERS
        ]
        if told := [way for way in ways if way.hashes.size]:
            yield told


def _looked(tensors: list[list[_Hashed]], known: dict[int, np.ndarray]) -> _Tally:
    """Of each tensor its rows that are known, or its columns, whichever are more."""
    tally = _Tally()
    for ways in tensors:
        counts = [int(np.isin(way.hashes, known.get(way.width, ())).sum()) for way in ways]
        shares = [same / way.hashes.size for same, way in zip(counts, ways, strict=True)]
        best = max(range(len(ways)), key=lambda place: (shares[place], counts[place]))
        same, (width, hashes, itemsize) = counts[best], ways[best]
        tally.numbers += hashes.size * width
        tally.found += same * width
        tally.rows += same
        tally.bytes += same * width * itemsize
        tally.whole += same == hashes.size
        tally.tensors += 1
    return tally


def _known(tensors: list[list[_Hashed]]) -> dict[int, np.ndarray]:
    """All hashes, by how many numbers they are of."""
    known: dict[int, list[np.ndarray]] = {}
    for way in (way for ways in tensors for way in ways):
        known.setdefault(way.width, []).append(way.hashes)
    return {width: np.unique(np.concatenate(each)) for width, each in known.items()}


def _matrices(files: TensorFiles) -> Iterator[tuple[Float[Tensor, "r w"], int]]:
    """Every tensor of numbers as rows, and the bytes of a number; a vector is one row."""
    for name in files:
        entry = files.entry(name)
        if not entry.dtype.is_floating_point or not entry.shape or 0 in entry.shape:
            continue
        try:
            tensor = files.read(name)
            if tensor.dtype != torch.float64 or torch.equal(tensor, tensor.float().double()):
                tensor = tensor.float()
            matrix = tensor[None] if tensor.dim() == 1 else tensor.flatten(1)
            if max(matrix.shape) >= _NUMBERS and not _is_formula(matrix):
                yield matrix, entry.dtype.itemsize
        except RuntimeError as error:  # of memory
            raise CheckpointError(f"{files.path}: {name[:80]!r}: {str(error)[:120]}") from None


def _is_formula(matrix: Float[Tensor, "r w"]) -> bool:
    """Whether it is a table of sines and cosines, or a row of frequencies."""
    some = matrix[: _AT_ONCE // matrix.shape[1] + 1]
    if len(matrix) == 1:
        parts = some[0, 1:] / some[0, :-1]
        return bool(some.all() and (parts - parts.mean()).abs().max() < 1e-3 * parts.mean().abs())
    half = some.shape[1] // 2
    pairs = (
        (some[:, : 2 * half : 2], some[:, 1 : 2 * half : 2]),
        (some[:, :half], some[:, half : 2 * half]),
    )
    return half > 0 and any(
        bool((sines.square() + cosines.square() - 1).abs().max() < 0.01) for sines, cosines in pairs
    )


def _telling(rows: Float[Tensor, "r w"]) -> Bool[Tensor, " r"]:
    """Rows of finite numbers most of which are others: zeros and ones are everybody's."""
    order = rows.sort(dim=1).values
    distinct = (order[:, 1:] != order[:, :-1]).sum(dim=1) + 1
    return rows.isfinite().all(dim=1) & (2 * distinct > rows.shape[1])


def _hashes(rows: Float[Tensor, "r w"]) -> Iterator[UInt64[np.ndarray, " h"]]:
    """A hash of the bits of each telling row, with random factors that nobody knows before."""
    step = max(1, _AT_ONCE // rows.shape[1])
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        some = some[_telling(some)] + 0.0  # -0 is 0
        bits = some.contiguous().numpy().view(np.uint32).astype(np.uint64)
        bits = bits * np.uint64(0x9E3779B97F4A7C15)  # so that few bits of a number fill all 64
        bits ^= bits >> np.uint64(29)
        yield (bits * _factors(bits.shape[1])).sum(axis=1, dtype=np.uint64)


_SECRET = np.random.SeedSequence().entropy


def _factors(width: int) -> UInt64[np.ndarray, " w"]:
    generator = np.random.default_rng([int(str(_SECRET)), width])
    return generator.integers(0, 2**64, width, dtype=np.uint64) | np.uint64(1)
