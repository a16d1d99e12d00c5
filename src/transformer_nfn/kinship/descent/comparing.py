"""Two networks side by side: units that keep their numbers, block by block."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.kinship.descent.chance import log10, log_fixed_points, smallest
from transformer_nfn.kinship.descent.closeness import Closeness, closeness
from transformer_nfn.kinship.descent.counting import (
    Count,
    comparable,
    count,
    first_look,
    spread,
    thin,
)
from transformer_nfn.kinship.descent.networks import Network
from transformer_nfn.kinship.descent.units import View, nearest

#: What is called kin is less likely than this among strangers.
LEVEL = 1e-6
#: Tensors of a lower cosine have hardly more in common than a start.
NEAR = 0.3
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
        close: How near the tensors are, of those that have the same shape and are not 0.
        same_shapes: Whether both have the same tensors, of the same shapes.
        is_copy: Whether these differ by their digits only, too.
    """

    number: int
    other: int
    counts: tuple[Count, ...]
    log_p: float
    tried: tuple[float, ...]
    close: tuple[Closeness, ...]
    same_shapes: bool
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
        """Between the tensors, the median; of the units, if no tensors have the same shape."""
        return median([one.cosine for one in self.close] or [self.telling.cosine])

    @property
    def difference(self) -> float:
        """Between the tensors, relative to those of B: the median."""
        return median([one.difference for one in self.close] or [math.inf])


@dataclass(frozen=True)
class Stream:
    """The stream of A and that of B, by what writes words or patches into them.

    Attributes:
        count: Coordinates that keep their numbers.
        close: How near the two writers are, in the rows that both have; None if one is 0.
        is_copy: Whether they are copies, with all rows.
        rows: How many words each has.
        doubt: Why coordinates may not be alike before training, so that it is not counted in p.
    """

    count: Count
    close: Closeness | None
    is_copy: bool
    rows: tuple[int, int]
    doubt: str | None

    @property
    def is_near(self) -> bool:
        """Whether most coordinates keep their numbers, and the writers are near."""
        return self.count.share > 0.5 and self.close is not None and self.close.cosine >= 0.5


@dataclass(frozen=True)
class NetKin:
    """One network of A, whole or its encoder, against that of B.

    Attributes:
        name: "network", or "encoder" and "decoder".
        blocks: Those of A.
        others: How many B has.
        stream: Where both have a writer of the same name and size.
        reason: Why not, if not.
        looks: Of each block of A some units, by which twins are found.
    """

    name: str
    blocks: tuple[BlockKin, ...]
    others: int
    stream: Stream | None
    reason: str | None
    looks: tuple[Mapping[View, Tensor], ...]

    @property
    def is_in_place(self) -> bool:
        """Whether both have as many blocks, and each is most like that of its own number."""
        same = [block.number == block.other for block in self.blocks]
        return all(same) and len(same) == self.others

    @property
    def same_shapes(self) -> bool:
        """Whether each block has the tensors of the other, of the same shapes."""
        return all(block.same_shapes for block in self.blocks)

    @property
    def is_copy(self) -> bool:
        """Whether the blocks are copies, and what writes before them."""
        written = self.stream is None or self.stream.is_copy
        return written and all(block.is_copy for block in self.blocks)

    @property
    def is_covered(self) -> bool:
        """Whether all blocks of A, or all of B, are kin to one of the other."""
        kin = [block for block in self.blocks if block.is_kin]
        every = len(kin) == len(self.blocks) or len({one.other for one in kin}) == self.others
        return bool(kin) and every


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
        ours_thin.append({m: rows for (m, _), rows in zip(looks, mine, strict=True)})
        tried = tuple(
            min(
                count(m, o, one, two).log_p
                for (m, o), one, two in zip(looks, mine, other, strict=True)
            )
            for other in theirs_thin
        )
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
        close, shapes, copied = _close(tensors, their_tensors, ours.dtype, theirs.dtype)
        blocks.append(BlockKin(number, other, counts, log_p, tried, close, shapes, copied))
        done()
    stream, reason = _stream(ours, theirs)
    return NetKin(ours.name, tuple(blocks), theirs.blocks, stream, reason, tuple(ours_thin))


def _close(
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    our_dtype: torch.dtype,
    their_dtype: torch.dtype,
) -> tuple[tuple[Closeness, ...], bool, bool]:
    """How near tensors of the same shape are, whether all have one, and whether all are copies."""
    both = [(tensor, theirs[name]) for name, tensor in ours.items() if name in theirs]
    alike = [(one, two) for one, two in both if one.shape == two.shape]
    whole = copied = len(alike) == len(ours) == len(theirs)
    found = []
    for one, two in alike:
        near = closeness(one, two, our_dtype, their_dtype)
        copied = copied and (near.is_copy if near is not None else torch.equal(one, two))
        found += [] if near is None else [near]
    return tuple(found), whole, copied


def _stream(ours: Network, theirs: Network) -> tuple[Stream | None, str | None]:
    """Coordinates of the stream, by the rows of the largest writer that both have."""
    shared = [name for name in ours.words if name in theirs.words]
    if not shared:
        return None, "nothing of the same name writes words into it"
    name = shared[0]
    table, other = ours.words[name](), theirs.words[name]()
    size = table.shape[1]
    if size != other.shape[1]:
        return None, f"streams of {size} and {other.shape[1]} coordinates"
    sizes = len(table), len(other)
    rows = min(sizes)
    table, other = table[:rows], other[:rows]
    few = spread(rows, _ROWS)
    numbers, cosines = nearest(_columns(table[few]), _columns(other[few]))
    kept = int((numbers[0] == torch.arange(size)).sum())
    cosine, log_p = cosines.mean().item(), log_fixed_points(kept)
    found = Count("coordinates of the stream", name, kept, size, False, cosine, log_p)
    close = closeness(table, other, ours.dtype, theirs.dtype)
    copied = sizes[0] == sizes[1] and close is not None and close.is_copy
    return Stream(found, close, copied, sizes, _doubt(ours, theirs)), None


def _doubt(ours: Network, theirs: Network) -> str | None:
    """Why coordinates of the stream may not be alike before training.

    Positions by a formula have a frequency for each. They may be stored, or trained from there.
    """
    if ours.by_formula or theirs.by_formula:
        return "a formula or an activation tells its coordinates apart"
    for name, table in ours.positions.items():
        if name not in theirs.positions:
            continue
        one, two = table(), theirs.positions[name]()
        if one.shape[1] != two.shape[1]:
            continue
        rows = min(len(one), len(two))
        near = closeness(one[:rows], two[:rows], ours.dtype, theirs.dtype)
        if near is not None and near.cosine >= NEAR:
            return f"{name} is alike in both, by kinship or by a formula"
    return None


def _columns(table: Float[Tensor, "r x"]) -> Float[Tensor, "1 x r"]:
    units = table.T[None]
    return units - units.mean(dim=1, keepdim=True)
