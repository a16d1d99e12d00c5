"""Which usual mistake explains that two checkpoints differ.

A mistake is named only where it explains everything: it is made in one of the two, and then a
change of coordinates must carry this one to the other, up to rounding, in every tensor. It is tried
on the blocks up to the first that differs, with short tables of words; then on all there is. Only a
shard of another model is seen otherwise: all that differs is in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity.causes.changed import shortened
from transformer_nfn.identity.causes.files import lost_digits, strange_shard
from transformer_nfn.identity.causes.headorder import head_orders
from transformer_nfn.identity.causes.mistakes import Mistake, mistakes
from transformer_nfn.identity.comparing.outcome import Match
from transformer_nfn.identity.matching.networks import match
from transformer_nfn.identity.settings import compare_settings
from transformer_nfn.identity.verdict import different_shapes, not_comparable

#: Words that a mistake is tried on first, as a multiple of the stream's size.
_WORDS = 4


@dataclass(frozen=True)
class Cause:
    """A mistake that explains a difference.

    Attributes:
        name: A few words, the same for each mistake of a kind.
        says: What happened, and what to do about it.
        evidence: What was seen.
    """

    name: str
    says: str
    evidence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.says} ({self.evidence})"


def find_cause(ours: Checkpoint, theirs: Checkpoint) -> Cause | None:
    """The usual mistake that made one of two checkpoints of the other; None if none explains it.

    Args:
        ours: The first, as it should be.
        theirs: The second.
    """
    settings = compare_settings(ours, theirs)
    if settings.differ or settings.unknown or different_shapes(ours, theirs):
        return None
    if not_comparable(ours) or not_comparable(theirs):
        return None
    first = _match(_short(ours, ours.blocks), _short(theirs, ours.blocks))
    if first is not None and not first.failures:
        first = _match(ours, theirs)
    if first is not None and not first.failures:
        return None  # then any mistake that changes nothing would explain it
    number = _block_of(theirs, first)
    for mistake, where in _tries(ours, theirs, number):
        if not _possible(mistake, theirs, first, number):
            continue
        one = mistake.made(ours) if where == "first" else ours
        two = mistake.made(theirs) if where == "second" else theirs
        if not _explains(_short(one, number + 1), _short(two, number + 1)):
            continue
        if (found := _match(one, two)) is not None and not found.failures:
            return Cause(
                mistake.name,
                mistake.says,
                f"once it is done to the {where}, a change of coordinates carries the first to the "
                f"second: all of {one.blocks} blocks and of what is around them, the worst at "
                f"{found.worst:.2f} of what rounding may do",
            )
    shard = strange_shard(ours, theirs)
    return Cause("shard", *shard) if shard is not None else None


def _tries(
    ours: Checkpoint, theirs: Checkpoint, number: int
) -> Iterator[tuple[Mistake, Literal["first", "second"]]]:
    """Mistakes, and in which of the two each is made."""
    known = list(mistakes(ours, number))
    for mistake in lost_digits(ours, theirs):
        yield mistake, "second"
    for mistake in (*known, *head_orders(ours, theirs, number)):
        yield mistake, "first"
    for mistake in known:  # last, since it would say that the first is the wrong one
        yield mistake, "second"


def _possible(mistake: Mistake, checkpoint: Checkpoint, found: Match | None, number: int) -> bool:
    """Whether a mistake touches all that differs first: to try it takes longer than to ask."""
    if found is None or not found.failures:
        return True
    places = {place for place, _ in found.failures}
    if places & set(checkpoint.writers):
        return mistake.words
    if mistake.tensors is None or checkpoint.block_name(number) not in places:
        return True
    # Where one matrix is wrong, heads or neurons find no partners, and all of that half is off.
    units, halves = checkpoint.spec.block.units, checkpoint.spec.block.halves
    touched = {
        name
        for half in halves
        if mistake.tensors & set(half.part.tensors)
        for name in half.part.tensors
    }
    kinds = {r.kind for place, r in found.failures if place == checkpoint.block_name(number)}
    seen = (units[kind].tensors if kind in units else tuple(kind.split()) for kind in kinds)
    return all(touched & set(tensors) for tensors in seen)


def _short(checkpoint: Checkpoint, blocks: int) -> Checkpoint:
    return shortened(checkpoint, blocks, _WORDS * checkpoint.D)


def _explains(ours: Checkpoint, theirs: Checkpoint) -> bool:
    found = _match(ours, theirs)
    return found is not None and not found.failures


def _match(ours: Checkpoint, theirs: Checkpoint) -> Match | None:
    """What is found between two; None if there is nothing to be found."""
    try:
        return match(ours, theirs)
    except (ValueError, RuntimeError) as error:  # of assignments and factorisations
        if isinstance(error, CheckpointError):
            raise
        return None


def _block_of(checkpoint: Checkpoint, found: Match | None) -> int:
    """The first block that differs; 0 if something else does."""
    place = found.failures[0][0] if found is not None and found.failures else None
    names = [checkpoint.block_name(number) for number in range(checkpoint.blocks)]
    return names.index(place) if place in names else 0
