"""How far two fingerprints are from each other, and what that makes of their checkpoints.

The distance of a part is |f - f'| over the mean of |f| and |f'|: 0 for a copy, √2 on average for
numbers that have nothing to do with each other, 2 where only one of the files has the part.

The limits are round numbers between the distances of small nets of gpt2, bert and llama. Those of
vit, qwen2, gpt2 with ReLU, zoo nets and MiniLM check them, but not blindly: some were seen while
the limits were chosen. Copies are moved by all parts of the group, their matrices having condition
numbers up to κ; near copies have noise on every weight and are hidden by an element as well
(``python benchmarks/fingerprint.py --real ../real --zoo digits-mini --json``, 12 of each kind and
family):

====================  ==========  =====================  =====================
pairs                 figure      gpt2, bert, llama      held out
====================  ==========  =====================  =====================
copy, float32, κ=100  largest     1.3e-6 to 9.7e-6       1.7e-6 to 5.3e-5
copy, float16, κ=10   largest     9.2e-4 to 3.6e-3       7.8e-4 to 4.1e-3
copy, bfloat16, κ=10  largest     6.0e-3 to 3.1e-2       6.2e-3 to 3.3e-2
noise 0.3 %           median      4.6e-3 to 1.1e-2       3.0e-3 to 1.4e-2
noise 1 %             median      1.5e-2 to 3.7e-2       1.0e-2 to 4.9e-2
noise 5 %             median      8.1e-2 to 1.9e-1       5.0e-2 to 2.3e-1
strangers             median      1.2 to 1.5             0.96 to 1.6
MiniLM, κ=100         largest                            2.4e-5
MiniLM, fine-tuned    median                             4.1e-2
MiniLM, random        median                             1.3
====================  ==========  =====================  =====================

Measured after the limits were fixed: of trained nets of the zoo digits-mini no two of different
runs are kin (130,048 pairs), and 706 of 768 pairs of one run are. Runs of one seed can be kin.

So in 16 bits a fine-tune that changes weights by less than their rounding, about 1 %, looks like a
copy in disguise; `same` decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from transformer_nfn.identity.fingerprinting import WIDTH, Fingerprint

#: Largest distance of any part of a copy, by the coarser of the two dtypes: what storing a
#: reparametrised copy in it rounds, for condition numbers up to 100, or 10 in 16 bits.
COPY: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-8, "float32": 1e-4, "float16": 0.01, "bfloat16": 0.05}
)
#: Largest distance of the median part of a near copy.
NEAR = 0.5
#: Fingerprints that are compared with all others at a time.
_ROWS = 256


class Kinship(StrEnum):
    """What a distance says of two checkpoints."""

    COPY = "copy"
    NEAR = "near copy"
    STRANGER = "stranger"


@dataclass(frozen=True)
class Distance:
    """Between two fingerprints.

    Attributes:
        parts: Of each part that one of them has.
        rms: Root mean square over the parts.
        largest: Of all parts.
        median: Of all parts; a new head or a few new blocks do not move it.
        limit: The largest that is still a copy's.
    """

    parts: Mapping[str, float]
    rms: float
    largest: float
    median: float
    limit: float

    @property
    def kinship(self) -> Kinship:
        """A copy in all parts, a near copy in most of them, or neither."""
        if self.largest <= self.limit:
            return Kinship.COPY
        return Kinship.NEAR if self.median <= NEAR else Kinship.STRANGER


def distance(a: Fingerprint, b: Fingerprint) -> Distance:
    """The distance of two fingerprints; infinite where their shapes differ."""
    limit = copy_limit(a.dtype, b.dtype)
    if a.shape != b.shape:
        return Distance({}, np.inf, np.inf, np.inf, limit)
    stacked = Stack([a, b])
    row = stacked.rows(0, np.array([1]))[0]
    parts = {
        name: float(value)
        for name, value in zip(stacked.names, row, strict=True)
        if not np.isnan(value)
    }
    rms, largest, median = (float(one[0]) for one in summaries(row[None]))
    return Distance(parts, rms, largest, median, limit)


def copy_limit(*dtypes: str) -> float:
    """The largest distance of a copy between files of some dtypes."""
    return max(COPY.get(dtype, COPY["bfloat16"]) for dtype in dtypes)


def summaries(
    parts: Float[np.ndarray, "n parts"],
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Root mean square, largest and median over the parts that are there."""
    rms = np.sqrt(np.nanmean(np.square(parts), axis=1))
    return rms, np.nanmax(parts, axis=1), np.nanmedian(parts, axis=1)


class Stack:
    """Fingerprints of one shape as one array, so that distances to many are taken at once.

    Attributes:
        names: The parts that any of them has.
        limits: The largest distance of a copy, for each.
    """

    def __init__(self, prints: Sequence[Fingerprint]) -> None:
        names: dict[str, None] = {}
        for one in prints:
            names |= dict.fromkeys(one.parts)
        self.names = list(names)
        self.limits = np.array([copy_limit(one.dtype) for one in prints])
        self._numbers = np.zeros((len(prints), len(names), WIDTH))
        for row, one in zip(self._numbers, prints, strict=True):
            for number, name in enumerate(self.names):
                if name in one.parts:
                    row[number] = one.parts[name].numpy()
        self._sizes = np.linalg.norm(self._numbers, axis=2)

    def rows(self, number: int, others: np.ndarray | None = None) -> Float[np.ndarray, "n parts"]:
        """Distances of each part to all others, or some; NaN for a part that neither has."""
        chosen = slice(None) if others is None else others
        difference = np.linalg.norm(self._numbers[chosen] - self._numbers[number], axis=2)
        size = (self._sizes[chosen] + self._sizes[number]) / 2
        relative: np.ndarray = difference / np.where(size > 0, size, np.nan)
        return relative

    def pairs(self) -> Iterator[tuple[int, int, float, Kinship]]:
        """All pairs i < j that are no strangers, with their rms distance."""
        for i, others in self._candidates():
            rms, largest, median = summaries(self.rows(i, others))
            copies = largest <= np.maximum(self.limits[others], self.limits[i])
            for place in np.flatnonzero(copies | (median <= NEAR)):
                kind = Kinship.COPY if copies[place] else Kinship.NEAR
                yield i, int(others[place]), float(rms[place]), kind

    def _candidates(self) -> Iterator[tuple[int, np.ndarray]]:
        """For each i all j > i that may be no strangers: half of their parts are near.

        That much follows from a median that is near, and takes one matrix product for each part;
        |f - f'|² from products is exact enough for NEAR, not for copies.
        """
        count, parts, _ = self._numbers.shape
        for first in range(0, count, _ROWS):
            here = slice(first, first + _ROWS)
            near = np.zeros((len(self._numbers[here]), count), dtype=np.int32)
            for part in range(parts):
                f, size = self._numbers[:, part], self._sizes[:, part]
                squares = size[here, None] ** 2 + size**2 - 2 * f[here] @ f.T
                near += squares <= (1.01 * NEAR / 2 * (size[here, None] + size)) ** 2
            for row, found in enumerate(near):
                others = np.flatnonzero(2 * found >= parts)
                others = others[others > first + row]
                if len(others):
                    yield first + row, others
