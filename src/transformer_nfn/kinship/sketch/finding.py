"""Kin among very many sketches: a first look at whole networks, a second at their blocks.

For strangers the cosine of two vectors of d sums is about normal, with a standard deviation of one
over the root of d, or more where neurons are few (`sizes_of_chance`). The first look passes on what
is four of them above 0 in one of three cosines, one pair of 10,000 strangers. The second takes the
blocks of the shallower network, each with the block of the other that is most like it, and combines
them as `tnfn kin` combines exact p-values; it passes on what is less likely than one in a million.
These are no p-values: nothing proves that sums of trained strangers are normal.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from scipy.special import gammainccinv, log_ndtr  # type: ignore[import-untyped]
from torch import Tensor

from transformer_nfn.kinship.joining import in_threads, large_products, pairs_before, tiles
from transformer_nfn.kinship.sketch.making import (
    BLOCK,
    BLOCKS,
    NETWORK,
    NUMBERED,
    ORDERLESS,
    WORDS,
    Sketch,
    width_of,
)

#: Blocks of one network with this cosine are copies of each other: they say one thing.
_ALIKE = 0.3
#: Standard deviations from which on a pair is looked at twice, and what is called kin then.
FIRST, SECOND = 4.0, 1e-6
#: Sums of each kind: where they are, and how many.
_PARTS = ((0, NUMBERED), (NUMBERED, ORDERLESS), (BLOCK, WORDS))
#: Pairs whose blocks are compared at a time; sketches that one is compared with.
_PAIRS, _MANY = 256, 2**12


class Pairs(NamedTuple):
    """Kin, as numbers into the stack, the later first, and how far they are from each other.

    `distance` is that of vectors of length 1 with the cosine of their blocks, in the median; with
    that of their words, if only these are kin.
    """

    first: Int[np.ndarray, " m"]
    second: Int[np.ndarray, " m"]
    distance: Float[np.ndarray, " m"]


class SketchStack:
    """Sketches of one kind, as arrays.

    Args:
        width: How many numbers a neuron of the kind reads.
        networks: The sums of each network.
        blocks: Those of the blocks of all networks, one after the other.
        depths: How many blocks each has.
        units: Neurons that each sum is of.
    """

    def __init__(
        self,
        width: int,
        networks: Int8[np.ndarray, "n 448"],
        blocks: Int8[np.ndarray, "b 384"],
        depths: Int[np.ndarray, " n"],
        units: Int[np.ndarray, " n"],
    ) -> None:
        self._width, self._networks, self._blocks = width, networks, blocks
        self._depths, self._units = depths, units
        self._starts = np.cumsum(depths) - depths

    @staticmethod
    def of(sketches: Sequence[Sketch]) -> "SketchStack":
        """Of some sketches of one kind, in their order."""
        return SketchStack(
            width_of(sketches[0].kind),
            np.array([one.network for one in sketches], dtype=np.int8),
            np.concatenate([one.blocks for one in sketches]),
            np.array([len(one.blocks) for one in sketches], dtype=np.int64),
            np.array([one.units for one in sketches], dtype=np.int64),
        )

    def digests(self) -> list[bytes]:
        """Of each sketch."""
        return [
            hashlib.blake2b(
                self._networks[row].tobytes()
                + self._blocks[start : start + depth].tobytes()
                + bytes([units]),
                digest_size=16,
            ).digest()
            for row, (start, depth, units) in enumerate(
                zip(self._starts.tolist(), self._depths.tolist(), self._units.tolist(), strict=True)
            )
        ]

    def deviations(self, rows: Int[np.ndarray, " m"] | slice) -> list[Tensor]:
        """Each kind of sums of some networks: the product of two counts standard deviations."""
        scales = sizes_of_chance(self._units[rows], self._width)
        found = []
        for (start, size), scale in zip(_PARTS, scales, strict=True):
            part = torch.from_numpy(self._networks[rows, start : start + size]).float()
            unit = torch.nn.functional.normalize(part, dim=1)
            found.append(unit * torch.from_numpy(scale).float().rsqrt()[:, None])
        return found

    def __len__(self) -> int:
        return len(self._networks)

    def pairs(self, order: Int[np.ndarray, " n"], start: int = 0) -> Iterator[tuple[int, Pairs]]:
        """All kin of which at least one is new, and how many pairs were looked at for them.

        Args:
            order: Which sketches, the known ones first.
            start: How many of these are known.
        """
        work = partial(self._rows, order, self.deviations(order))
        return in_threads(work, start, len(order))

    def kin_of(self, one: Sketch) -> Pairs:
        """All kin of a sketch: `first` is 0 everywhere."""
        alone = SketchStack.of([one])
        own = alone.deviations(slice(None))

        def look(begin: int, end: int) -> np.ndarray:
            return large_products(own, self.deviations(slice(begin, end)), FIRST)[1] + begin

        found = in_threads(look, 0, len(self), _MANY)
        near = np.concatenate([*found, np.empty(0, dtype=np.int64)])
        return _judged(alone, self, np.zeros(len(near), dtype=np.int64), near)

    def take(self, rows: Int[np.ndarray, " m"]) -> "Taken":
        """Some sketches, their blocks side by side and zeros after the last."""
        depths = self._depths[rows]
        places = np.arange(depths.max(initial=1))
        there = places < depths[:, None]
        wanted = np.where(there, self._starts[rows][:, None] + places, 0)
        blocks = self._blocks[wanted] * there[..., None]
        return Taken(self._width, self._networks[rows], blocks, depths, self._units[rows])

    def _rows(
        self, order: np.ndarray, units: list[Tensor], begin: int, end: int
    ) -> tuple[int, Pairs]:
        """Pairs of some rows with all before them."""
        firsts, seconds = [], []
        for tile in tiles(end):
            ours, theirs = ([unit[some] for unit in units] for some in (slice(begin, end), tile))
            first, second = large_products(ours, theirs, FIRST)
            first, second = first + begin, second + tile.start
            before = second < first
            firsts.append(first[before])
            seconds.append(second[before])
        first, second = (order[np.concatenate(some)] for some in (firsts, seconds))
        return pairs_before(end, begin), _judged(self, self, first, second)


def are_kin(one: Sketch | None, two: Sketch | None) -> bool:
    """Whether both looks call two sketches kin; without sketches of one kind nothing does."""
    if one is None or two is None or one.kind != two.kind:
        return False
    return len(SketchStack.of([two]).kin_of(one).first) > 0


class Taken(NamedTuple):
    """Some sketches of a width as arrays of one depth."""

    width: int
    networks: Int8[np.ndarray, "m 448"]
    blocks: Int8[np.ndarray, "m l 384"]
    depths: Int[np.ndarray, " m"]
    units: Int[np.ndarray, " m"]


def sizes_of_chance(units: Int[np.ndarray, " n"], width: int) -> list[Float[np.ndarray, " n"]]:
    """Standard deviations of the cosines of strangers, by kind of sums.

    Of d sums one over the root of d, and beside it what the neurons themselves have in common by
    chance: little, unless they are few and short.
    """
    count = units.astype(np.float64)
    free = (
        (count - 1) * max(width - 1, 1),
        np.full(len(count), max(width * (width - 1) / 2, 1.0)),
        np.full(len(count), np.inf),  # of some hundred words
    )
    return [np.sqrt(1 / size + 1 / each) for (_, size), each in zip(_PARTS, free, strict=True)]


def _judged(ours: SketchStack, theirs: SketchStack, first: np.ndarray, second: np.ndarray) -> Pairs:
    """Those of some pairs that are kin by their blocks and words."""
    kept, far = [np.empty(0, dtype=bool)], [np.empty(0)]
    for begin in range(0, len(first), _PAIRS):
        here = slice(begin, begin + _PAIRS)
        evidence, cosines = by_blocks(ours.take(first[here]), theirs.take(second[here]))
        kept.append(evidence >= 0)
        far.append(np.sqrt(2 - 2 * cosines.clip(-1, 1)))
    chosen = np.concatenate(kept)
    return Pairs(first[chosen], second[chosen], np.concatenate(far)[chosen])


def by_blocks(one: Taken, two: Taken) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The second look at some pairs: evidence, which is not below 0 for kin, and cosines.

    The blocks of the shallower network count, each with the block of the other that is most like
    it; of two of one depth those for which there is less evidence. Blocks that are alike in a
    network itself count as one.
    """
    deep = max(one.blocks.shape[1], two.blocks.shape[1])
    sides = [_padded(side.blocks, deep) for side in (one, two)]
    depths = [one.depths, two.depths]
    units = np.minimum(one.units, two.units)
    scales = sizes_of_chance(units, one.width)
    best = [np.full((len(units), deep), -np.inf) for _ in sides]
    cosines = [np.full((len(units), deep), -1.0) for _ in sides]
    for (start, size), scale in zip(_PARTS[:2], scales, strict=False):
        products = _cosines(*(side[:, :, start : start + size] for side in sides))
        for way in (0, 1):  # the blocks of the first, and of the second
            missing = np.arange(deep) >= depths[1 - way][:, None]
            other = np.where(
                missing[:, None, :], -1.0, products if way == 0 else products.transpose(0, 2, 1)
            )
            largest = other.max(axis=2)
            best[way] = np.maximum(best[way], largest / scale[:, None])
            cosines[way] = np.maximum(cosines[way], largest)
    start, size = _PARTS[2]
    vectors = [side.networks[:, None, start : start + size] for side in (one, two)]
    words = _cosines(*vectors)[:, 0, 0]
    found = []
    for way in (0, 1):
        there = np.arange(deep) < depths[way][:, None]
        own = sides[way][:, :, :NUMBERED]
        alike = ((_cosines(own, own) >= _ALIKE) & there[:, None, :]).sum(axis=2)
        share = np.where(there, 1 / np.maximum(alike, 1), 0.0)
        # Two kinds of sums and each block of the other network were tried.
        tries = np.log(2.0 * depths[1 - way])[:, None]
        logs = np.minimum(log_ndtr(-best[way]) + tries, 0.0)
        total = -(share * logs).sum(axis=1) - log_ndtr(-words / scales[2])
        evidence = total - gammainccinv(share.sum(axis=1) + 1, SECOND)
        near = np.nanmedian(np.where(there, cosines[way], np.nan), axis=1)
        found.append((evidence, np.where(near / scales[0] >= FIRST, near, np.maximum(near, words))))
    first = np.where(depths[0] <= depths[1], found[0], np.inf)
    second = np.where(depths[1] <= depths[0], found[1], np.inf)
    evidence, near = np.minimum(first, second)
    return evidence, near


def _cosines(
    one: Int8[np.ndarray, "m a d"], two: Int8[np.ndarray, "m b d"]
) -> Float[np.ndarray, "m a b"]:
    """Of all pairs, the same whoever comes first: sums of bytes are exact in float32."""
    a, b = (torch.from_numpy(np.ascontiguousarray(side)).float() for side in (one, two))
    products = torch.bmm(a, b.transpose(1, 2)).numpy().astype(np.float64)
    sizes = [np.sqrt(np.square(side.astype(np.float64)).sum(axis=2)) for side in (one, two)]
    found: np.ndarray = products / np.maximum(sizes[0][:, :, None] * sizes[1][:, None, :], 1e-300)
    return found


def _padded(blocks: np.ndarray, deep: int) -> np.ndarray:
    return np.pad(blocks, ((0, 0), (0, deep - blocks.shape[1]), (0, 0)))


assert 1 + BLOCKS * BLOCK + NETWORK <= 16_000
