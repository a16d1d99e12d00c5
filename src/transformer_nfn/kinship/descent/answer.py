"""Does this network come from that one: the answer in a word."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import count
from pathlib import Path

from transformer_nfn.checkpoints import Checkpoint, TensorFiles
from transformer_nfn.kinship.descent.chance import combined, log10, smallest
from transformer_nfn.kinship.descent.closeness import roundings
from transformer_nfn.kinship.descent.comparing import LEVEL, NEAR, NetKin, compare
from transformer_nfn.kinship.descent.direction import (
    Direction,
    direction_of_copies,
    direction_of_derived,
)
from transformer_nfn.kinship.descent.networks import Network, networks_of
from transformer_nfn.kinship.descent.rows import shared_rows
from transformer_nfn.kinship.descent.tables import networks_by_table, read_table
from transformer_nfn.kinship.descent.twins import find_twins

#: So many tensors are named one by one.
_NAMED = 3


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
        log_p: The logarithm of the p-value of all blocks and streams.
        networks: What was seen.
        twins: Blocks of A that are kin to each other, by network and number: their orders are not
            independent, so they count once.
        direction: Which of the two came first, if something says so.
    """

    relation: Relation
    reason: str
    log_p: float
    networks: tuple[NetKin, ...] = field(repr=False)
    twins: tuple[tuple[tuple[str, int], ...], ...]
    direction: Direction | None = None

    @property
    def log10_p(self) -> float:
        """The same to the base 10."""
        return log10(self.log_p)


def kin(ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] | None = None) -> Kin:
    """Ask whether A comes from B, or both from a common start.

    Args:
        ours: A, whose units are taken to be in a random order, given B.
        theirs: B.
        progress: Called with the number of blocks of A that are compared.
    """
    files = ours.files, theirs.files
    return _kin(networks_of(ours), networks_of(theirs), progress, files)


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
            and their axes; see `docs/understand/networks.md`.
        progress: As for `kin`.
    """
    axes = read_table(table)
    networks = networks_by_table(ours, axes), networks_by_table(theirs, axes)
    return _kin(*networks, progress, (ours, theirs))


#: Of the smaller of two files that no family reads: this part in common makes a copy, if it is this
#: part of all its bytes and so many rows; and this one a part.
_MOST, _BYTES, _ROWS, _SOME = 0.99, 0.5, 16, 0.01


def kin_by_rows(ours: TensorFiles, theirs: TensorFiles) -> Kin:
    """The same of any files: rows that both have, bit for bit; there is no p-value."""
    found = shared_rows(ours, theirs)
    said = (
        f"compared by rows that are the same, bit for bit, since no family reads both: "
        f"{found.ours:.1%} of the first are in the second, {found.theirs:.1%} of the second in the "
        f"first, {found.known:.0%} of the bytes of the smaller; {found.tensors} of {found.of} "
        f"tensors of the first are there with all their rows"
    )
    if found.rows < _ROWS or found.of_smaller < _SOME:
        more = f"{said}; --units TABLE.toml compares more"
        return Kin(Relation.NOT_COMPARABLE, more, 0.0, (), ())
    copied = found.of_smaller >= _MOST and found.known >= _BYTES
    return Kin(Relation.COPY if copied else Relation.PARTS, said, 0.0, (), ())


def _kin(
    ours: Sequence[Network],
    theirs: Sequence[Network],
    progress: Callable[[int], None] | None,
    files: tuple[TensorFiles, TensorFiles],
) -> Kin:
    numbers, named = count(1), {net.name: net for net in theirs}

    def done() -> None:
        if progress is not None:
            progress(next(numbers))

    pairs = [(net, named[net.name]) for net in ours if net.name in named]
    networks = tuple(compare(one, two, done) for one, two in pairs)
    twins = find_twins(networks)
    log_p = total_log_p(networks, twins)
    by_name = _ByName(*files)
    relation, reason = _answer(networks, log_p, by_name)
    direction = None
    if relation is Relation.COPY:
        direction = direction_of_copies(by_name.roundings.values())
    elif relation is Relation.DERIVED:
        direction = direction_of_derived(pairs, networks)
    return Kin(relation, reason, log_p, networks, twins, direction)


def total_log_p(networks: Sequence[NetKin], twins: Sequence[Sequence[tuple[str, int]]]) -> float:
    """Of blocks and the stream, which are independent; of twins and of two streams the smallest."""
    logs = {(net.name, block.number): block.log_p for net in networks for block in net.blocks}
    groups = [[logs.pop(member) for member in group] for group in twins]
    groups += [[log] for log in logs.values()]
    groups.append([n.stream.count.log_p for n in networks if n.stream and not n.stream.doubt])
    return combined([smallest(group, len(group)) for group in groups if group])


def _answer(networks: tuple[NetKin, ...], log_p: float, by_name: "_ByName") -> tuple[Relation, str]:
    """In a word and a sentence what was seen."""
    if not networks:
        return Relation.NOT_COMPARABLE, "one has an encoder and a decoder, the other has not"
    blocks = [block for net in networks for block in net.blocks]
    if not blocks and not any(net.stream for net in networks):
        said = "; ".join(net.reason for net in networks if net.reason)
        return Relation.NOT_COMPARABLE, f"no block has units of the same numbers; {said}"
    said = "; ".join(_told(net) for net in networks)
    in_place = all(net.is_in_place for net in networks)
    alike = in_place and all(net.same_shapes for net in networks)
    if alike and log_p >= math.log(LEVEL) and not by_name.changed(networks):
        few = "too few units for a p-value that says something"
        return Relation.COPY, f"tensors differ by rounding at most; {few}"
    words = any(net.stream.is_near for net in networks if net.stream)
    if log_p >= math.log(LEVEL):
        if words:
            return Relation.PARTS, f"the words alone, which is not counted in p; {said}"
        return Relation.UNRELATED, "no more units keep their places than in unrelated models"
    related = [block for block in blocks if block.is_kin]
    near = any(block.cosine >= NEAR for block in related)
    # Words that are seldom seen stay where they began, so their table says little beside blocks.
    if not near and (related or not words):
        return Relation.START, f"hardly more is left of it; {said}"
    if not all(net.is_covered for net in networks):
        return Relation.PARTS, said
    if in_place:
        changed = by_name.changed(networks)
        if not changed and not alike:
            changed = [f"tensors of the {net.name}" for net in networks if not net.same_shapes]
        if not changed:
            return Relation.COPY, f"tensors differ by rounding at most; {said}"
        named = ", ".join(changed) if len(changed) <= _NAMED else f"{len(changed)} tensors"
        verb = "differs" if len(changed) == 1 and " " not in changed[0] else "differ"
        said = f"{said}; {named} {verb} by more than rounding"
    return Relation.DERIVED, said


class _ByName:
    """The tensors that have the same name in two files."""

    def __init__(self, ours: TensorFiles, theirs: TensorFiles) -> None:
        self._ours, self._theirs = ours, theirs
        self._names = [name for name in ours if name in theirs]

    @cached_property
    def roundings(self) -> dict[str, tuple[bool, bool]]:
        """Whether each is the other, rounded; read once, and only where somebody asks."""
        found = {}
        for name in self._names:
            entries = self._ours.entry(name), self._theirs.entry(name)
            if entries[0].shape != entries[1].shape:
                found[name] = False, False
            elif all(entry.dtype.is_floating_point for entry in entries):
                one, two = (files.read(name).float() for files in (self._ours, self._theirs))
                found[name] = roundings(one, two, *(entry.dtype for entry in entries))
        return found

    def changed(self, networks: Sequence[NetKin]) -> list[str]:
        """Tensors that are no copies: by their names, if most have the same in both files."""
        if 2 * len(self._names) < min(len(list(self._ours)), len(list(self._theirs))):
            return [f"tensors of the {net.name}" for net in networks if not net.is_copy]
        return [name for name, found in self.roundings.items() if not any(found)]


def _told(net: NetKin) -> str:
    kin = sum(block.is_kin for block in net.blocks)
    said = f"{net.name}: {kin} of {len(net.blocks)} blocks are kin"
    if net.stream is not None:
        one = net.stream.count
        said += f", {one.kept} of {one.units} coordinates of the stream keep their places"
    return said
