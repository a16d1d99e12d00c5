"""Which of two kin came first: by what is lost, or added, one way only."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.kinship.descent.comparing import LEVEL, NetKin
from transformer_nfn.kinship.descent.networks import Network

_NAMES = "first", "second"
#: Rows of a table of words that was only made longer or shorter are at least so near.
_SAME_WORDS = 0.9


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


def direction_of_copies(tensors: Iterable[tuple[bool, bool]]) -> Direction | None:
    """Of two copies the one with fewer digits is the younger; None if both have all of them.

    Args:
        tensors: What `roundings` says of each.
    """
    sides = {found.index(True) for found in tensors if sum(found) == 1}
    if len(sides) != 1:
        return None
    (younger,) = sides
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
    yield from _by_units(one, two, net)
    if net.stream is not None and net.stream.close is not None:
        rows = net.stream.rows
        if rows[0] != rows[1] and net.stream.close.cosine >= _SAME_WORDS:
            more, name = int(rows[1] > rows[0]), net.stream.count.tensor
            yield Direction(1 - more, f"the {_NAMES[more]} has more rows in {name}")


def _by_units(one: Network, two: Network, net: NetKin) -> Iterator[Direction]:
    """Units that were cut away, or put there as copies and zeros."""
    both = [{(v.label, v.tensor): v for v in views} for views in (one.views, two.views)]
    done = set()
    for block in net.blocks:
        for count in block.counts:
            if not count.ordered or count.log_p >= math.log(LEVEL) or count.label in done:
                continue
            done.add(count.label)
            views = [known[count.label, count.tensor] for known in both]
            fewer = int(views[1].size < views[0].size)
            few, many = views[fewer].size, views[1 - fewer].size
            number = (block.number, block.other)[1 - fewer]
            tensor = (one, two)[1 - fewer].tensors(number)[count.tensor]
            if _distinct(tensor.movedim(views[1 - fewer].place, 0).flatten(1)) <= few:
                more = (
                    f"the {_NAMES[1 - fewer]} has {many - few} {count.what} more, zeros or copies"
                )
                yield Direction(fewer, more)
            else:
                yield Direction(
                    1 - fewer, f"the {_NAMES[fewer]} has {few} of the {many} {count.what}"
                )


def _distinct(rows: Float[Tensor, "u w"]) -> int:
    """How many rows are neither 0 nor equal to another."""
    return len(torch.unique(rows[(rows != 0).any(dim=1)], dim=0))


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
    few, many = [pair[smaller] for pair in kin], [pair[1 - smaller] for pair in kin]
    if len(many) != len(set(many)):  # all blocks began as copies of one: which is which?
        return
    if set(few) != set(range(counts[smaller])):
        return
    if len(many) == counts[1 - smaller]:
        yield Direction(smaller, f"the {_NAMES[1 - smaller]} repeats blocks of the other")
    elif len(few) == len(set(few)):
        yield Direction(
            1 - smaller,
            f"the {_NAMES[smaller]} has {counts[smaller]} of the {counts[1 - smaller]} blocks",
        )
