"""Does this network come from that one: the answer in a word."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from pathlib import Path

from transformer_nfn.checkpoints import Checkpoint, TensorFiles
from transformer_nfn.kinship.descent.chance import combined, log10
from transformer_nfn.kinship.descent.comparing import LEVEL, NetKin, compare
from transformer_nfn.kinship.descent.networks import Network, networks_of
from transformer_nfn.kinship.descent.tables import networks_by_table, read_table

#: Where tensors have a cosine below this, hardly more than a start is left of what they shared.
NEAR = 0.3


class Relation(Enum):
    """What two networks are to each other, as far as their weights say."""

    COPY = "copy"
    DERIVED = "derived"
    START = "shares a start"
    PARTS = "shares parts"
    UNRELATED = "unrelated as far as can be seen"
    NOT_COMPARABLE = "not comparable"


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
        return log10(_log_p(self.networks))


def kin(ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] | None = None) -> Kin:
    """Ask whether A comes from B, or both from a common start.

    Args:
        ours: A, whose units are taken to be in a random order, given B.
        theirs: B.
        progress: Called with the number of blocks of A that are compared.
    """
    return _kin(networks_of(ours), networks_of(theirs), progress)


def kin_by_table(
    ours: TensorFiles,
    theirs: TensorFiles,
    table: Path,
    progress: Callable[[int], None] | None = None,
) -> Kin:
    """The same of files that no family reads: tensors of the same names are compared.

    Args:
        ours: A.
        theirs: B.
        table: A TOML file: for each network names of tensors, with {} for the number of a block,
            and their axes; see `docs/kinship.md`.
        progress: As for `kin`.
    """
    axes = read_table(table)
    return _kin(networks_by_table(ours, axes), networks_by_table(theirs, axes), progress)


def _kin(
    ours: Sequence[Network],
    theirs: Sequence[Network],
    progress: Callable[[int], None] | None,
) -> Kin:
    numbers, named = count(1), {net.name: net for net in theirs}

    def done() -> None:
        if progress is not None:
            progress(next(numbers))

    pairs = [(net, named[net.name]) for net in ours if net.name in named]
    return answer(tuple(compare(one, two, done) for one, two in pairs))


def answer(networks: tuple[NetKin, ...]) -> Kin:
    """In a word and a sentence what was seen."""
    blocks = [block for net in networks for block in net.blocks]
    if not blocks and not any(net.stream for net in networks):
        said = "; ".join(net.reason for net in networks if net.reason)
        return Kin(
            Relation.NOT_COMPARABLE, f"no block has units of the same numbers; {said}", networks
        )
    if _log_p(networks) >= math.log(LEVEL):
        said = "no more units keep their numbers than do in strangers"
        return Kin(Relation.UNRELATED, said, networks)
    said = "; ".join(_told(net) for net in networks)
    related = [block for block in blocks if block.is_kin]
    near = any(block.cosine >= NEAR for block in related)
    # Words that are seldom seen stay where they began, so their table says little beside blocks.
    if not near and (related or not any(_shares_table(net) for net in networks)):
        return Kin(Relation.START, f"hardly more is left of it; {said}", networks)
    if any(net.covered < 1 for net in networks if net.blocks):
        return Kin(Relation.PARTS, said, networks)
    if all(net.is_copy for net in networks):
        return Kin(Relation.COPY, f"tensors differ by their digits only; {said}", networks)
    return Kin(Relation.DERIVED, said, networks)


def _log_p(networks: Sequence[NetKin]) -> float:
    """The logarithm of the p-value of all blocks and streams.

    They have orders of their own, but an encoder and a decoder that share their words have one
    order of the stream.
    """
    streams = {net.stream.tensor: net.stream.log_p for net in networks if net.stream is not None}
    return combined([*(log for net in networks for log in net.log_ps), *streams.values()])


def _shares_table(net: NetKin) -> bool:
    """Whether the stream is kin, and near."""
    close = net.table is not None and net.table.cosine >= NEAR
    return net.stream is not None and net.stream.log_p < math.log(LEVEL) and close


def _told(net: NetKin) -> str:
    kin = sum(block.is_kin for block in net.blocks)
    said = f"{net.name}: {kin} of {len(net.blocks)} blocks are kin"
    if net.stream is not None:
        one = net.stream
        said += f", {one.kept} of {one.units} coordinates of the stream keep their numbers"
    return said
