"""All pairs of kin among many fingerprints of one shape, exactly, at about a nanosecond a pair.

Kin are near in the median of their parts, that is in at least half of them. Of any choice of more
than half of the parts at least one is therefore near. In such a part |f - f'| is at most NEAR times
the mean of |f| and |f'|, which needs a cosine of 1 - NEAR²/2 or more. Strangers reach that in one
pair of some 100,000: a product in float32 and its largest entry by row leave few candidates, whose
distances are then taken in full.
"""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transformer_nfn.jobs import one_thread
from transformer_nfn.kinship.distances import NEAR, Stack

#: Least cosine of a part that is near, less what float32 may round.
_COSINE = 1 - NEAR**2 / 2 - 1e-3
#: Rows and columns of a product: 4 MB stay in a cache, and threads have enough to do.
_ROWS, _COLUMNS = 256, 4096
#: Pairs whose distances are taken at a time.
_PAIRS = 2**14

Found = TypeVar("Found")


class Links(NamedTuple):
    """Pairs of kin, as numbers into a stack."""

    first: Int[np.ndarray, " m"]
    second: Int[np.ndarray, " m"]
    distance: Float[np.ndarray, " m"]
    copies: Bool[np.ndarray, " m"]

    @staticmethod
    def joined(parts: "Sequence[Links]") -> "Links":
        """One after the other."""
        empty = Links(*(np.empty(0, dtype=kind) for kind in (np.int64, np.int64, float, bool)))
        return Links(*(np.concatenate(column) for column in zip(empty, *parts, strict=True)))


class Block(NamedTuple):
    """What came of some rows: how many pairs were compared, and those of kin."""

    pairs: int
    links: Links


def kin_pairs(stack: Stack, order: Int[np.ndarray, " n"], start: int = 0) -> Iterator[Block]:
    """All pairs of kin of which at least one is new, each once and the later first.

    Args:
        stack: The fingerprints.
        order: Which of them, the known ones first.
        start: How many of these are known.
    """
    return in_threads(partial(_block, stack, order, _units(stack, order)), start, len(order))


def in_threads(
    work: Callable[[int, int], Found], start: int, end: int, rows: int = _ROWS
) -> Iterator[Found]:
    """What comes of some rows at a time, from `start` to before `end`, in their order."""
    blocks = ((row, min(row + rows, end)) for row in range(start, end, rows))
    threads = os.cpu_count() or 1
    waiting: deque[Future[Found]] = deque()
    with one_thread("cpu"), ThreadPoolExecutor(threads) as pool:
        for block in blocks:  # few at a time: what is found may be large
            waiting.append(pool.submit(work, *block))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def tiles(end: int) -> Iterator[slice]:
    """Columns before `end`, some thousand at a time."""
    return (slice(column, min(column + _COLUMNS, end)) for column in range(0, end, _COLUMNS))


def pairs_before(end: int, begin: int = 0) -> int:
    """How many pairs some rows make with all before them."""
    return (end * (end - 1) - begin * (begin - 1)) // 2


def _units(stack: Stack, order: np.ndarray) -> list[Tensor] | None:
    """Directions of as many parts as are needed; None where no choice of parts is enough."""
    everywhere = np.flatnonzero((stack.sizes[order] > 0).all(axis=0))
    # A part that neither has takes no part in the median; at worst it counts as near.
    missing = len(stack.names) - len(everywhere)
    near = -(-len(stack.names) // 2) - missing
    if near <= 0:
        return None
    chosen = everywhere[: len(everywhere) - near + 1]
    return [
        torch.from_numpy(
            (stack.numbers[order, part] / stack.sizes[order, part, None]).astype(np.float32)
        )
        for part in chosen
    ]


def _block(
    stack: Stack, order: np.ndarray, units: list[Tensor] | None, begin: int, end: int
) -> Block:
    """Pairs of some rows with all before them."""
    found = []
    for tile in tiles(end):
        if units is None:
            rows, columns = (g.ravel() for g in np.mgrid[begin:end, tile])
        else:
            ours, theirs = ([unit[some] for unit in units] for some in (slice(begin, end), tile))
            rows, columns = large_products(ours, theirs, _COSINE)
            rows, columns = rows + begin, columns + tile.start
        before = columns < rows
        rows, columns = rows[before], columns[before]
        for piece in range(0, len(rows), _PAIRS):
            here = slice(piece, piece + _PAIRS)
            first, second = order[rows[here]], order[columns[here]]
            judged = stack.judge(first, second)
            kin = judged.kin
            if kin.any():
                found.append(Links(first[kin], second[kin], judged.median[kin], judged.copies[kin]))
    return Block(pairs_before(end, begin), Links.joined(found))


def large_products(
    ours: Sequence[Float[Tensor, "a d"]], theirs: Sequence[Float[Tensor, "b d"]], least: float
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """Rows and columns of all pairs with a product so large, in one of several kinds of vectors."""
    width = len(theirs[0])
    found = []
    for one, two in zip(ours, theirs, strict=True):
        products = one @ two.T
        rows = (products.amax(dim=1) >= least).nonzero()[:, 0]
        if len(rows):  # in most tiles few: the others are not searched again
            pairs = (products[rows] >= least).nonzero()
            found.append(rows[pairs[:, 0]] * width + pairs[:, 1])
    flat = np.unique(torch.cat(found).numpy()) if found else np.empty(0, dtype=np.int64)
    return flat // width, flat % width
