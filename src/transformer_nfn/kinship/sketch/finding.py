"""Kin among very many sketches: a first look at whole networks, a second at their blocks.

For strangers the cosine of two vectors of d sums is about normal, with a standard deviation of one
over the root of d. The first look passes on what is four of them above 0 in one of three cosines,
one pair of 10,000 strangers. The second takes the blocks of the shallower network, each with the
block of the other that is most like it, and combines them as `tnfn kin` combines exact p-values; it
passes on what is less likely than one in a million. These are no p-values: nothing proves that
sums of trained strangers are normal.
"""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int8
from scipy.special import gammainccinv, log_ndtr  # type: ignore[import-untyped]
from torch import Tensor

from transformer_nfn.jobs import one_thread
from transformer_nfn.kinship.joining import pairs_before
from transformer_nfn.kinship.sketch.making import (
    BLOCK,
    BLOCKS,
    NETWORK,
    NUMBERED,
    ORDERLESS,
    WORDS,
    Sketch,
)

#: Standard deviations from which on a pair is looked at twice, and what is called kin then.
FIRST, SECOND = 4.0, 1e-6
#: Sums of each kind: where they are, and how many.
_PARTS = ((0, NUMBERED), (NUMBERED, ORDERLESS), (BLOCK, WORDS))
#: Rows and columns of a product: 4 MB stay in a cache, and threads have enough to do.
_ROWS, _COLUMNS = 256, 4096
#: Pairs whose blocks are compared at a time; sketches that one is compared with.
_PAIRS, _MANY = 256, 2**16


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
        networks: The sums of each network.
        blocks: Those of the blocks of all networks, one after the other.
        depths: How many blocks each has.
    """

    def __init__(
        self,
        networks: Int8[np.ndarray, "n 448"],
        blocks: Int8[np.ndarray, "b 384"],
        depths: Int[np.ndarray, " n"],
    ) -> None:
        self._networks, self._blocks, self._depths = networks, blocks, depths
        self._starts = np.cumsum(depths) - depths

    @staticmethod
    def of(sketches: Sequence[Sketch]) -> "SketchStack":
        """Of some sketches, in their order."""
        return SketchStack(
            np.array([one.network for one in sketches], dtype=np.int8).reshape(-1, NETWORK),
            np.concatenate([np.empty((0, BLOCK), np.int8), *(one.blocks for one in sketches)]),
            np.array([len(one.blocks) for one in sketches], dtype=np.int64),
        )

    def __len__(self) -> int:
        return len(self._networks)

    def pairs(self, order: Int[np.ndarray, " n"], start: int = 0) -> Iterator[tuple[int, Pairs]]:
        """All kin of which at least one is new, and how many pairs were looked at for them.

        Args:
            order: Which sketches, the known ones first.
            start: How many of these are known.
        """
        units = _units(self._networks[order])
        threads = os.cpu_count() or 1
        waiting: deque[Future[tuple[int, Pairs]]] = deque()
        with one_thread("cpu"), ThreadPoolExecutor(threads) as pool:
            for begin in range(start, len(order), _ROWS):
                end = min(begin + _ROWS, len(order))
                waiting.append(pool.submit(self._rows, order, units, begin, end))
                if len(waiting) > 2 * threads:  # few at a time: what is found may be large
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def kin_of(self, one: Sketch) -> Pairs:
        """All kin of a sketch: `first` is 0 everywhere."""
        own = _units(one.network[None])
        found = []
        for begin in range(0, len(self), _MANY):
            some = _units(self._networks[begin : begin + _MANY])
            found.append(_looked(own, some)[1] + begin)
        near = np.concatenate([*found, np.empty(0, dtype=np.int64)])
        return _judged(SketchStack.of([one]), self, np.zeros(len(near), dtype=np.int64), near)

    def take(self, rows: Int[np.ndarray, " m"]) -> "Taken":
        """Some sketches, their blocks side by side and zeros after the last."""
        depths = self._depths[rows]
        places = np.arange(depths.max(initial=1))
        there = places < depths[:, None]
        wanted = np.where(there, self._starts[rows][:, None] + places, 0)
        return Taken(self._networks[rows], self._blocks[wanted] * there[..., None], depths)

    def _rows(
        self, order: np.ndarray, units: list[Tensor], begin: int, end: int
    ) -> tuple[int, Pairs]:
        """Pairs of some rows with all before them."""
        firsts, seconds = [], []
        rows = [unit[begin:end] for unit in units]
        for column in range(0, end, _COLUMNS):
            columns = [unit[column : min(column + _COLUMNS, end)] for unit in units]
            first, second = _looked(rows, columns)
            first, second = first + begin, second + column
            before = second < first
            firsts.append(first[before])
            seconds.append(second[before])
        first, second = (order[np.concatenate(some)] for some in (firsts, seconds))
        return pairs_before(end, begin), _judged(self, self, first, second)


class Taken(NamedTuple):
    """Some sketches as arrays of one depth."""

    networks: Int8[np.ndarray, "m 448"]
    blocks: Int8[np.ndarray, "m l 384"]
    depths: Int[np.ndarray, " m"]


def _units(networks: Int8[np.ndarray, "n 448"]) -> list[Tensor]:
    """Each kind of sums in standard deviations: the product of two is the root of their number."""
    found = []
    for start, size in _PARTS:
        part = torch.from_numpy(networks[:, start : start + size]).float()
        found.append(torch.nn.functional.normalize(part, dim=1) * size**0.25)
    return found


def _looked(ours: list[Tensor], theirs: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of all pairs that are far enough from 0 in one kind of sums."""
    width = len(theirs[0])
    found = []
    for one, two in zip(ours, theirs, strict=True):
        deviations = one @ two.T
        rows = (deviations.amax(dim=1) >= FIRST).nonzero()[:, 0]
        if len(rows):  # in most tiles few: the others are not searched again
            pairs = (deviations[rows] >= FIRST).nonzero()
            found.append(rows[pairs[:, 0]] * width + pairs[:, 1])
    flat = np.unique(torch.cat(found).numpy()) if found else np.empty(0, dtype=np.int64)
    return flat // width, flat % width


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
    """The second look at some pairs: evidence, which is not below 0 for kin, and cosines."""
    swap = (one.depths > two.depths)[:, None, None]
    deep = max(one.blocks.shape[1], two.blocks.shape[1])
    a, b = (_padded(side.blocks, deep) for side in (one, two))
    shallow, other = np.where(swap, b, a), np.where(swap, a, b)
    least, most = np.minimum(one.depths, two.depths), np.maximum(one.depths, two.depths)
    best = np.full(shallow.shape[:2], -np.inf)
    cosines = np.full(shallow.shape[:2], -1.0)
    missing = np.arange(deep)[None, None, :] >= most[:, None, None]
    for start, size in _PARTS[:2]:
        mine, their = (_cosine_ready(side[:, :, start : start + size]) for side in (shallow, other))
        products = torch.bmm(mine, their.transpose(1, 2)).numpy().astype(np.float64)
        products[np.broadcast_to(missing, products.shape)] = -1.0
        largest = products.max(axis=2)
        best = np.maximum(best, largest * size**0.5)
        cosines = np.maximum(cosines, largest)
    there = np.arange(deep)[None] < least[:, None]
    # Two kinds of sums and each block of the other network were tried.
    logs = np.minimum(log_ndtr(-best) + np.log(2.0 * most)[:, None], 0.0)
    start, size = _PARTS[2]
    sums = [_cosine_ready(side.networks[:, start : start + size]) for side in (one, two)]
    words = (sums[0] * sums[1]).sum(dim=1).numpy().astype(np.float64)
    total = -np.where(there, logs, 0.0).sum(axis=1) - log_ndtr(-words * size**0.5)
    near = np.nanmedian(np.where(there, cosines, np.nan), axis=1)
    alike = np.where(near * NUMBERED**0.5 >= FIRST, near, np.maximum(near, words))
    return total - gammainccinv(least + 1, SECOND), alike


def _padded(blocks: np.ndarray, deep: int) -> np.ndarray:
    return np.pad(blocks, ((0, 0), (0, deep - blocks.shape[1]), (0, 0)))


def _cosine_ready(sums: Int8[np.ndarray, "*n d"]) -> Float[Tensor, "*n d"]:
    return torch.nn.functional.normalize(torch.from_numpy(sums).float(), dim=-1)


assert BLOCKS * BLOCK + NETWORK <= 16_000
