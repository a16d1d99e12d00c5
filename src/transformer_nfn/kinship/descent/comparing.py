"""Two networks side by side: units that keep their numbers, block by block."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.kinship.descent.chance import log10, log_fixed_points, smallest
from transformer_nfn.kinship.descent.counting import (
    Closeness,
    Count,
    closeness,
    comparable,
    count,
    first_look,
    thin,
)
from transformer_nfn.kinship.descent.networks import Network
from transformer_nfn.kinship.descent.units import View, nearest

#: What is called kin is less likely than this among strangers.
LEVEL = 1e-6
#: Rows of a table of words that are looked at.
_ROWS = 4096


@dataclass(frozen=True)
class BlockKin:
    """A block of A and the block of B that is most like it.

    Attributes:
        number: Of the block of A.
        other: Of the block of B.
        counts: Units of each kind that keep their numbers there.
        log_p: The logarithm of its p-value, with all that was tried for it.
        tried: Logarithms of the smallest p-value with each block of B, of some units only, before
            they are multiplied with the number of tries.
        close: How near the tensors are, of those that have the same shape.
        is_copy: Whether all have, and differ by their digits only.
    """

    number: int
    other: int
    counts: tuple[Count, ...]
    log_p: float
    tried: tuple[float, ...]
    close: tuple[Closeness, ...]
    is_copy: bool

    @property
    def log10_p(self) -> float:
        """The same to the base 10."""
        return log10(self.log_p)

    @property
    def is_kin(self) -> bool:
        """Whether it is less likely than `LEVEL` among strangers."""
        return self.log_p < math.log(LEVEL)

    @property
    def telling(self) -> Count:
        """The count that is least likely among strangers."""
        return min(self.counts, key=lambda one: one.log_p)

    @property
    def cosine(self) -> float:
        """Between the tensors: the median."""
        return median([one.cosine for one in self.close] or [0.0])

    @property
    def difference(self) -> float:
        """Between the tensors, relative to those of B: the median."""
        return median([one.difference for one in self.close] or [math.inf])


@dataclass(frozen=True)
class NetKin:
    """One network of A, whole or its encoder, against that of B.

    Attributes:
        name: "network", or "encoder" and "decoder".
        blocks: Those of A.
        others: How many B has.
        stream: Coordinates of the stream that keep their numbers, by what writes them first.
        table: How near that writer is, in the rows that both have.
        same_table: Whether it is a copy, with all its rows.
        reason: Why the stream is not compared, if it is not.
        twins: Blocks of A that are kin to each other, as in a network that was grown: their orders
            are not independent.
    """

    name: str
    blocks: tuple[BlockKin, ...]
    others: int
    stream: Count | None = None
    table: Closeness | None = None
    same_table: bool = True
    reason: str | None = None
    twins: tuple[tuple[int, ...], ...] = ()

    @property
    def log_ps(self) -> list[float]:
        """Logarithms of p-values that are independent: of blocks, of twins the smallest."""
        alone = set(range(len(self.blocks))).difference(*self.twins)
        groups = [*self.twins, *((number,) for number in sorted(alone))]
        return [smallest([self.blocks[i].log_p for i in group], len(group)) for group in groups]

    @property
    def is_copy(self) -> bool:
        """Whether every block is a copy of that of the same number, and what writes before them."""
        same = [block.is_copy and block.number == block.other for block in self.blocks]
        return self.same_table and all(same) and len(same) == self.others

    @property
    def covered(self) -> float:
        """The part of the blocks that are kin: of those of A, or of B if that is more."""
        kin = [block for block in self.blocks if block.is_kin]
        if not self.blocks:
            return 0.0
        return max(len(kin) / len(self.blocks), len({one.other for one in kin}) / self.others)


@torch.no_grad()
def compare(ours: Network, theirs: Network, done: Callable[[], None]) -> NetKin:
    """Count the units of each block of A, and the coordinates of its stream.

    Args:
        ours: Of A.
        theirs: Of B.
        done: Called after each block of A.
    """
    pairs = comparable(ours.views, theirs.views)
    looks = first_look(pairs)
    theirs_thin = []
    for number in range(theirs.blocks) if pairs else ():
        tensors = theirs.tensors(number)
        theirs_thin.append([thin(m, o, tensors[o.tensor], ours=False) for m, o in looks])
    blocks, ours_thin = [], []
    for number in range(ours.blocks) if pairs else ():
        tensors = ours.tensors(number)
        mine = [thin(m, o, tensors[m.tensor], ours=True) for m, o in looks]
        ours_thin.append(mine)
        tried = tuple(_look(looks, mine, other) for other in theirs_thin)
        best = min(tried)
        # Where nothing is seen, the block as deep as this one.
        deep = number * theirs.blocks // ours.blocks
        other = deep if tried[deep] == best else tried.index(best)
        their_tensors = theirs.tensors(other)
        counts = tuple(
            count(m, o, m.rows(tensors[m.tensor]), o.rows(their_tensors[o.tensor]))
            for m, o in pairs
        )
        tries = theirs.blocks * (len(looks) + len(pairs))
        log_p = smallest([best, *(one.log_p for one in counts)], tries)
        both = [(t, their_tensors[n]) for n, t in tensors.items() if n in their_tensors]
        alike = [(one, two) for one, two in both if one.shape == two.shape]
        close = tuple(closeness(one, two, max(ours.eps, theirs.eps)) for one, two in alike)
        whole = len(alike) == len(tensors) == len(their_tensors)
        copied = whole and all(one.is_copy for one in close)
        blocks.append(BlockKin(number, other, counts, log_p, tried, close, copied))
        done()
    twins = _twins(looks, ours_thin)
    return NetKin(ours.name, tuple(blocks), theirs.blocks, *_stream(ours, theirs), twins)


_Looks = Sequence[tuple[View, View]]


def _look(looks: _Looks, ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> float:
    """The logarithm of the smallest p-value of two blocks, by some of their units."""
    every = zip(looks, ours, theirs, strict=True)
    return min(count(m, o, one, two).log_p for (m, o), one, two in every)


def _twins(looks: _Looks, blocks: Sequence[Sequence[Tensor]]) -> tuple[tuple[int, ...], ...]:
    """Groups of blocks of one network that are kin to each other."""
    own = [(mine, mine) for mine, _ in looks]
    limit = math.log(LEVEL / max(len(blocks) ** 2 * len(looks), 1))
    group = list(range(len(blocks)))
    for i, j in combinations(range(len(blocks)), 2):
        if group[i] != group[j] and _look(own, blocks[i], blocks[j]) < limit:
            group = [group[i] if one == group[j] else one for one in group]
    members = ([i for i, one in enumerate(group) if one == name] for name in sorted(set(group)))
    return tuple(tuple(some) for some in members if len(some) > 1)


def _stream(
    ours: Network, theirs: Network
) -> tuple[Count | None, Closeness | None, bool, str | None]:
    """Coordinates of the stream, by the rows of the largest table that both have."""
    shared = [name for name in ours.tables if name in theirs.tables]
    if not shared:
        return None, None, not ours.tables and not theirs.tables, "no table of both writes into it"
    one, two = ({name: net.tables[name]() for name in shared} for net in (ours, theirs))
    name = max(shared, key=lambda each: one[each].numel())
    table, other = one.pop(name), two.pop(name)
    size = table.shape[1]
    if size != other.shape[1]:
        return None, None, False, f"streams of {size} and {other.shape[1]} coordinates"
    rows, whole = min(len(table), len(other)), len(table) == len(other)
    table, other = table[:rows], other[:rows]
    close = closeness(table, other, max(ours.eps, theirs.eps))
    # A table of positions by a formula: coordinates have frequencies, and are not alike before
    # training.
    fixed = [n for n, t in one.items() if len(t) > 2 and torch.equal(t, two[n])]
    if fixed and not close.is_copy:
        return (
            None,
            close,
            False,
            f"{fixed[0]} is the same in both, so coordinates may not be alike",
        )
    few = torch.linspace(0, rows - 1, min(rows, _ROWS)).round().long()
    units = _columns(table[few]), _columns(other[few])
    kept = int((nearest(*units)[0] == torch.arange(size)).sum())
    found = Count("coordinates of the stream", name, kept, size, log_fixed_points(kept, size))
    return found, close, whole and close.is_copy, None


def _columns(table: Float[Tensor, "r x"]) -> Float[Tensor, "1 x r"]:
    units = table.T[None]
    return units - units.mean(dim=1, keepdim=True)
