"""Does this network come from that one: units that keep their numbers, block by block."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from statistics import median

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.kinship.descent.chance import combined, log10, log_fixed_points, smallest
from transformer_nfn.kinship.descent.counting import (
    Closeness,
    Count,
    closeness,
    comparable,
    count,
    first_look,
    thin,
)
from transformer_nfn.kinship.descent.units import nearest, views

#: What is called kin is less likely than this among strangers.
LEVEL = 1e-6
#: Where more than this part of the units keep their numbers, training did not make them anew.
KEPT = 0.5
#: Rows of a table of words that are looked at.
_ROWS = 4096


class Relation(Enum):
    """What two networks are to each other, as far as their weights say."""

    COPY = "copy"
    DERIVED = "derived"
    START = "shares a start"
    PARTS = "shares parts"
    UNRELATED = "unrelated as far as can be seen"
    NOT_COMPARABLE = "not comparable"


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
        same_table: Whether that writer is a copy.
        reason: Why the stream is not compared, if it is not.
    """

    name: str
    blocks: tuple[BlockKin, ...]
    others: int
    stream: Count | None = None
    same_table: bool = True
    reason: str | None = None

    @property
    def log_p(self) -> float:
        """The logarithm of the p-value of all blocks and of the stream, which are independent."""
        stream = [] if self.stream is None else [self.stream.log_p]
        return combined([*(block.log_p for block in self.blocks), *stream])

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


@dataclass(frozen=True)
class Kin:
    """The answer.

    Attributes:
        relation: In a word.
        reason: In a sentence.
        networks: What was seen.
    """

    relation: Relation
    reason: str
    networks: tuple[NetKin, ...] = field(repr=False)

    @property
    def log10_p(self) -> float:
        """The logarithm of the p-value, to the base 10."""
        return log10(combined([net.log_p for net in self.networks]))


@torch.no_grad()
def kin(ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] | None = None) -> Kin:
    """Ask whether A comes from B, or both from a common start.

    Args:
        ours: A, whose units are taken to be in a random order, given B.
        theirs: B.
        progress: Called with 1 for each block of A.
    """
    pairs = [("network", ours, theirs)]
    if ours.encoder is not None and theirs.encoder is not None:
        pairs = [("encoder", ours.encoder, theirs.encoder), ("decoder", ours, theirs)]
    return answer(tuple(_compare(*pair, progress) for pair in pairs))


def _compare(
    name: str, ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] | None
) -> NetKin:
    pairs = comparable(views(ours.spec), views(theirs.spec))
    looks, eps = first_look(pairs), _eps(ours, theirs)
    theirs_thin = []
    for number in range(theirs.blocks) if pairs else ():
        tensors = _tensors(theirs, number)
        theirs_thin.append([thin(m, o, tensors[o.tensor], ours=False) for m, o in looks])
    blocks = []
    for number in range(ours.blocks) if pairs else ():
        tensors = _tensors(ours, number)
        mine = [thin(m, o, tensors[m.tensor], ours=True) for m, o in looks]
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
        their_tensors = _tensors(theirs, other)
        counts = tuple(
            count(m, o, m.rows(tensors[m.tensor]), o.rows(their_tensors[o.tensor]))
            for m, o in pairs
        )
        tries = theirs.blocks * (len(looks) + len(pairs))
        log_p = smallest([best, *(one.log_p for one in counts)], tries)
        alike = [
            n
            for n, t in tensors.items()
            if n in their_tensors and t.shape == their_tensors[n].shape
        ]
        close = tuple(closeness(tensors[n], their_tensors[n], eps) for n in alike)
        whole = len(alike) == len(tensors) == len(their_tensors)
        copied = whole and all(one.is_copy for one in close)
        blocks.append(BlockKin(number, other, counts, log_p, tried, close, copied))
        if progress is not None:
            progress(1)
    return NetKin(name, tuple(blocks), theirs.blocks, *_stream(ours, theirs))


def _eps(ours: Checkpoint, theirs: Checkpoint) -> float:
    return max(torch.finfo(c.dtype).eps for c in (ours, theirs))


def _tensors(checkpoint: Checkpoint, number: int) -> dict[str, Tensor]:
    batch = checkpoint.block(number, torch.float32)
    return {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}


def _stream(ours: Checkpoint, theirs: Checkpoint) -> tuple[Count | None, bool, str | None]:
    """Coordinates of the stream, by the rows that both tables of words have."""
    if ours.D != theirs.D:
        return None, False, f"streams of {ours.D} and {theirs.D} coordinates"
    name, table = _table(ours)
    other_name, other = _table(theirs)
    if table is None or other is None:
        return None, name == other_name, "no table writes into the stream"
    if (
        table.shape[1:] != other.shape[1:]
        or ours.writers[name].axes != theirs.writers[other_name].axes
    ):
        return None, False, f"{name} and {other_name} are not alike"
    rows, whole = min(len(table), len(other)), len(table) == len(other)
    table, other = table[:rows], other[:rows]
    close = closeness(table, other, _eps(ours, theirs))
    if (same := _equal_tables(ours, theirs, name)) is not None and not close.is_copy:
        return None, False, f"{same} is the same in both, so coordinates may not be alike"
    few = torch.linspace(0, rows - 1, min(rows, _ROWS)).round().long()
    units = _columns(table[few]), _columns(other[few])
    kept = int((nearest(*units)[0] == torch.arange(ours.D)).sum())
    return (
        Count("stream", name, kept, ours.D, log_fixed_points(kept, ours.D)),
        whole and close.is_copy,
        None,
    )


def _columns(table: Float[Tensor, "r x"]) -> Float[Tensor, "1 x r"]:
    units = table.T[None]
    return units - units.mean(dim=1, keepdim=True)


def _table(checkpoint: Checkpoint) -> tuple[str, Tensor | None]:
    """The largest of what writes into the stream before the first block, "r x"."""
    sizes = {
        name: checkpoint.files.entry(name).shape
        for name, writer in checkpoint.writers.items()
        if "x" in writer.axes.split() and len(writer.axes.split()) > 1
    }
    if not sizes:
        return "", None
    name = max(sizes, key=lambda one: torch.Size(sizes[one]).numel())
    tensor = checkpoint.files.read(name).float()
    place = checkpoint.writers[name].axes.split().index("x")
    return name, tensor.movedim(place, -1).reshape(-1, checkpoint.D)


def _equal_tables(ours: Checkpoint, theirs: Checkpoint, words: str) -> str | None:
    """Another writer that is bit for bit the same in both: positions by a formula, most likely.

    With such a table coordinates have frequencies, and are not alike before training.
    """
    for name in ours.writers.keys() & theirs.writers.keys() - {words}:
        one, two = (c.files.read(name) for c in (ours, theirs))
        if one.numel() > 2 * ours.D and one.shape == two.shape and torch.equal(one, two):
            return name
    return None


def answer(networks: tuple[NetKin, ...]) -> Kin:
    """In a word and a sentence what was seen."""
    blocks = [block for net in networks for block in net.blocks]
    if not blocks and not any(net.stream for net in networks):
        said = "; ".join(net.reason for net in networks if net.reason)
        return Kin(
            Relation.NOT_COMPARABLE, f"no block has units of the same numbers; {said}", networks
        )
    if combined([net.log_p for net in networks]) >= math.log(LEVEL):
        said = "no more units keep their numbers than do in strangers"
        return Kin(Relation.UNRELATED, said, networks)
    said = "; ".join(_told(net) for net in networks)
    related = [block for block in blocks if block.is_kin]
    if not related:
        shared = any(net.stream and net.stream.share > KEPT for net in networks)
        return Kin(Relation.PARTS if shared else Relation.START, said, networks)
    if all(block.telling.share < KEPT for block in related):
        return Kin(
            Relation.START, f"some units keep their numbers, and most do not; {said}", networks
        )
    if any(net.covered < 1 for net in networks if net.blocks):
        return Kin(Relation.PARTS, said, networks)
    if all(net.is_copy for net in networks):
        return Kin(Relation.COPY, f"tensors differ by their digits only; {said}", networks)
    return Kin(Relation.DERIVED, said, networks)


def _told(net: NetKin) -> str:
    kin = sum(block.is_kin for block in net.blocks)
    said = f"{net.name}: {kin} of {len(net.blocks)} blocks are kin"
    if net.stream is not None:
        one = net.stream
        said += f", {one.kept} of {one.units} coordinates of the stream keep their numbers"
    return said
