"""How far two fingerprints are from each other, and what that makes of their checkpoints.

The distance of a part is |f - f'| over the mean of |f| and |f'|: 0 for a copy, about 1 for
numbers that have nothing to do with each other, 2 where only one of the files has the part.

The limits are round numbers between the distances of small nets of gpt2, bert and llama. Those of
vit, qwen2, gpt2 with ReLU, zoo nets and MiniLM check them, but not blindly: some were seen while
the limits were chosen. Copies are moved by all parts of the group, their matrices having condition
numbers up to κ; near copies have noise on every weight and are hidden by an element as well
(``python benchmarks/kin/fingerprint.py --real ../real --zoo digits-mini --json``, 12 of each kind
and family):

====================  ==========  =====================  =====================
pairs                 figure      gpt2, bert, llama      held out
====================  ==========  =====================  =====================
copy, float32, κ=100  largest     1.3e-6 to 6.5e-6       1.6e-6 to 1.8e-5
copy, float16, κ=10   largest     8.0e-4 to 2.2e-3       6.5e-4 to 3.9e-3
copy, bfloat16, κ=10  largest     5.3e-3 to 2.0e-2       4.7e-3 to 2.9e-2
noise 0.3 %           median      3.5e-3 to 7.5e-3       2.6e-3 to 9.3e-3
noise 1 %             median      1.2e-2 to 2.5e-2       8.7e-3 to 3.1e-2
noise 5 %             median      5.7e-2 to 1.2e-1       4.2e-2 to 1.5e-1
strangers             median      0.87 to 1.3            0.76 to 1.2
MiniLM, κ=100         largest                            5.7e-6
MiniLM, fine-tuned    median                             1.2e-2
MiniLM, random        median                             1.5
====================  ==========  =====================  =====================

Measured after the limits were fixed: of trained nets of the zoo digits-mini no two of different
runs are kin (130,048 pairs), and 705 of 768 pairs of one run are. Runs of one seed can be kin.

So in 16 bits a fine-tune that changes weights by less than their rounding, about 1 %, looks like a
copy in disguise; `same` decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from transformer_nfn.kinship.fingerprinting import WIDTH, Fingerprint

#: Largest distance of any part of a copy, by the coarser of the two dtypes: what storing a
#: reparametrised copy in it rounds, for condition numbers up to 100, or 10 in 16 bits.
COPY: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-8, "float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}
)
#: Largest distance of the median part of kin.
NEAR = 0.4
#: Fingerprints whose distances to one are taken at a time.
_AT_ONCE = 2**14


class Kinship(StrEnum):
    """What a distance says of two checkpoints."""

    COPY = "copy"
    KIN = "related"
    STRANGER = "stranger"


@dataclass(frozen=True)
class Distance:
    """Between two fingerprints.

    Attributes:
        parts: Of each part that one of them has.
        largest: Of all parts.
        median: Of all parts; a new output head or a few new blocks do not move it. This is the
            distance that commands show.
        limit: The largest that is still a copy's.
    """

    parts: Mapping[str, float]
    largest: float
    median: float
    limit: float

    @property
    def kinship(self) -> Kinship:
        """A copy in all parts, near in most of them, or neither."""
        if self.largest <= self.limit:
            return Kinship.COPY
        return Kinship.KIN if self.median <= NEAR else Kinship.STRANGER


def distance(a: Fingerprint, b: Fingerprint) -> Distance:
    """The distance of two fingerprints; infinite where their shapes differ."""
    limit = copy_limit(a.dtype, b.dtype)
    if a.shape != b.shape:
        return Distance({}, np.inf, np.inf, limit)
    stacked = Stack.of([a, b])
    row = stacked.between(np.array([0]), np.array([1]))[0]
    parts = {
        name: float(value)
        for name, value in zip(stacked.names, row, strict=True)
        if not np.isnan(value)
    }
    largest, median = (float(one[0]) for one in summaries(row[None]))
    return Distance(parts, largest, median, limit)


def copy_limit(*dtypes: str) -> float:
    """The largest distance of a copy between files of some dtypes."""
    return max(COPY.get(dtype, COPY["bfloat16"]) for dtype in dtypes)


def summaries(
    parts: Float[np.ndarray, "n parts"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Largest and median over the parts that are there."""
    if not np.isnan(parts).any():  # the rule, and five times as fast
        return parts.max(axis=1), np.median(parts, axis=1)
    there = ~np.isnan(parts).all(axis=1)  # not so where all weights of both are 0
    largest, median = np.full((2, len(parts)), np.nan)
    if there.any():
        largest[there] = np.nanmax(parts[there], axis=1)
        median[there] = np.nanmedian(parts[there], axis=1)
    return largest, median


class Stack:
    """Fingerprints of one shape as one array, so that many distances are taken at once.

    Args:
        names: The parts that any of them has.
        numbers: 16 for each part; zeros where one has no such part.
        limits: The largest distance of a copy, for each fingerprint.
    """

    def __init__(
        self,
        names: Sequence[str],
        numbers: Float[np.ndarray, "n parts 16"],
        limits: Float[np.ndarray, " n"],
    ) -> None:
        self.names, self.numbers, self.limits = names, numbers, limits
        self.sizes = np.linalg.norm(numbers, axis=2)

    @staticmethod
    def of(prints: Sequence[Fingerprint]) -> "Stack":
        """Of some fingerprints of one shape."""
        names: dict[str, None] = {}
        for one in prints:
            names |= dict.fromkeys(one.parts)
        numbers = np.zeros((len(prints), len(names), WIDTH))
        for row, one in zip(numbers, prints, strict=True):
            for number, name in enumerate(names):
                if name in one.parts:
                    row[number] = one.parts[name].numpy()
        return Stack(list(names), numbers, np.array([copy_limit(one.dtype) for one in prints]))

    def __len__(self) -> int:
        return len(self.numbers)

    def between(self, first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, "n parts"]:
        """Distances of each part of some pairs; NaN where neither has it."""
        numbers, sizes = self.numbers, self.sizes
        return _relative(numbers[first], sizes[first], numbers[second], sizes[second])

    def judge(self, first: np.ndarray, second: np.ndarray) -> "Judged":
        """What some pairs are to each other."""
        limits = np.maximum(self.limits[first], self.limits[second])
        return Judged.of(self.between(first, second), limits)

    def nearest(self, one: Fingerprint, count: int) -> list[tuple[int, float, Kinship]]:
        """The nearest to a fingerprint of the same shape, copies first: numbers, distances."""
        other = Stack.of([one])
        numbers = np.zeros((len(self.names), WIDTH))
        more = 0  # parts that only the one has
        for name, row in zip(other.names, other.numbers[0], strict=True):
            if name in self.names:
                numbers[self.names.index(name)] = row
            else:
                more += bool(row.any())
        sizes = np.linalg.norm(numbers, axis=-1)
        limits = np.maximum(self.limits, other.limits)
        found: list[tuple[int, float, Kinship]] = []
        for start in range(0, len(self), _AT_ONCE):
            here = slice(start, start + _AT_ONCE)
            parts = _relative(numbers, sizes, self.numbers[here], self.sizes[here])
            parts = np.pad(parts, ((0, 0), (0, more)), constant_values=2.0)
            judged = Judged.of(parts, limits[here])
            found += [
                (start + place, float(judged.median[place]), judged.kinship(place))
                for place in np.lexsort((judged.median, ~judged.copies))[:count].tolist()
            ]
        return sorted(found, key=lambda row: (row[2] is not Kinship.COPY, row[1]))[:count]


def _relative(
    a: Float[np.ndarray, "*n parts 16"],
    a_size: Float[np.ndarray, "*n parts"],
    b: Float[np.ndarray, "n parts 16"],
    b_size: Float[np.ndarray, "n parts"],
) -> Float[np.ndarray, "n parts"]:
    size = (a_size + b_size) / 2
    difference = b - a
    squares = np.einsum("...i,...i->...", difference, difference)
    found: np.ndarray = np.sqrt(squares) / np.where(size > 0, size, np.nan)
    return found


class Judged(NamedTuple):
    """Of some pairs: their distances, which are copies, and which are no strangers."""

    median: Float[np.ndarray, " n"]
    copies: Bool[np.ndarray, " n"]
    kin: Bool[np.ndarray, " n"]

    @staticmethod
    def of(parts: Float[np.ndarray, "n parts"], limits: Float[np.ndarray, " n"]) -> "Judged":
        """Of the distances of their parts, and the largest of a copy."""
        largest, median = summaries(parts)
        copies = largest <= limits
        return Judged(median, copies, copies | (median <= NEAR))

    def kinship(self, place: int) -> Kinship:
        """What a pair is."""
        if self.copies[place]:
            return Kinship.COPY
        return Kinship.KIN if self.kin[place] else Kinship.STRANGER
