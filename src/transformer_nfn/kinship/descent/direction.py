"""Which of two kin came first: by what is lost, or added, one way only."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformer_nfn.checkpoints import TensorFiles
from transformer_nfn.kinship.descent.closeness import coarser
from transformer_nfn.kinship.descent.comparing import LEVEL, NetKin
from transformer_nfn.kinship.descent.networks import Network

_NAMES = "first", "second"


@dataclass(frozen=True)
class Direction:
    """From which of two networks to which: likely, as all of it can be made the other way round.

    Attributes:
        source: The one that came first, or has more of what did: 0 for the first, 1 for the second.
        because: What was seen.
    """

    source: int
    because: str

    def __str__(self) -> str:
        source, other = _NAMES[self.source], _NAMES[1 - self.source]
        return f"likely from the {source} to the {other}: {self.because}"


def direction_of_copies(ours: TensorFiles, theirs: TensorFiles) -> Direction | None:
    """Of two copies the one with fewer digits is the younger; None if both have all of them."""
    rounded = set()
    for name in ours:
        if name not in theirs:
            continue
        entries = ours.entry(name), theirs.entry(name)
        if entries[0].shape != entries[1].shape or not all(
            e.dtype.is_floating_point for e in entries
        ):
            continue
        one, two = ours.read(name).float(), theirs.read(name).float()
        rounded.add(coarser(one, two, *(entry.dtype for entry in entries)))
    sides = rounded - {None}
    if len(sides) != 1:
        return None
    (younger,) = sides
    assert younger is not None
    return Direction(1 - younger, f"the {_NAMES[younger]} has the same numbers with fewer digits")


def direction_of_derived(
    pairs: Sequence[tuple[Network, Network]], networks: Sequence[NetKin]
) -> Direction | None:
    """Of two of which one was made of the other: by their blocks, units and words."""
    seen = [
        sign
        for (one, two), net in zip(pairs, networks, strict=True)
        for sign in _signs(one, two, net)
    ]
    if len({sign.source for sign in seen}) != 1:
        return None
    return Direction(seen[0].source, "; ".join(dict.fromkeys(sign.because for sign in seen)))


def _signs(one: Network, two: Network, net: NetKin) -> Iterator[Direction]:
    yield from _by_blocks(net)
    sizes = [{view.label: view.size for view in views} for views in (one.views, two.views)]
    ordered = {
        count.label: count.what
        for b in net.blocks
        if b.is_kin
        for count in b.counts
        if count.ordered
    }
    for label, what in ordered.items():
        younger = int(sizes[1][label] < sizes[0][label])
        few, all_ = sizes[younger][label], sizes[1 - younger][label]
        yield Direction(1 - younger, f"the {_NAMES[younger]} has {few} of the {all_} {what}")
    if net.stream is not None and net.stream.is_near and net.stream.rows[0] != net.stream.rows[1]:
        younger = int(net.stream.rows[1] > net.stream.rows[0])
        yield Direction(1 - younger, f"the {_NAMES[younger]} has more words")


def _by_blocks(net: NetKin) -> Iterator[Direction]:
    """Blocks that were left out, or stand there several times."""
    counts = len(net.blocks), net.others
    if counts[0] == counts[1]:
        return
    smaller = int(counts[1] < counts[0])
    kin = [
        (block.number, other)
        for block in net.blocks
        for other, log_p in enumerate(block.tried)
        if log_p < math.log(LEVEL)
    ]
    kin = [(pair[smaller], pair[1 - smaller]) for pair in kin]  # of the smaller, of the larger
    if {few for few, _ in kin} != set(range(counts[smaller])):
        return
    if {many for _, many in kin} == set(range(counts[1 - smaller])):
        yield Direction(smaller, f"the {_NAMES[1 - smaller]} repeats blocks of the other")
    else:
        yield Direction(
            1 - smaller,
            f"the {_NAMES[smaller]} has {counts[smaller]} of the {counts[1 - smaller]} blocks",
        )
