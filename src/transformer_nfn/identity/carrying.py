"""How near an element carries one checkpoint to another, in units of what rounding does."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity.acting import block_changes, outside_changes
from transformer_nfn.identity.applying import changes
from transformer_nfn.identity.element import NetElement
from transformer_nfn.identity.witness import jittered

#: Most units by which a row or column may be off, and more for each unit of condition. Elements are
#: estimated from rounded files, in zoo-paper one basis after the other: honest copies of each
#: family, either way round, are off by 2 to 13, by up to 33 where a scale of a norm is next to 0,
#: and by up to 78 at condition 1000.
LIMIT = 40.0
FOR_CONDITION = 0.125
#: Files in float64 are compared as if they were stored this coarsely: it is what we compute in.
_FINEST = 4e-13


@dataclass(frozen=True)
class Carried:
    """The worst place of what an element makes of the first file, beside the second.

    Attributes:
        units: The root mean square, over a row or column of a tensor, of what it is off by, as a
            multiple of what rounding both files does there.
        limit: What still counts as rounding.
        where: The tensor.
    """

    units: float
    limit: float
    where: str | None

    @property
    def within(self) -> bool:
        """Whether rounding explains it."""
        return self.units <= self.limit


def carried(ours: Checkpoint, theirs: Checkpoint, element: NetElement) -> Carried:
    """Apply an element to one checkpoint and compare every tensor with the other's.

    Rounding of the second file is half a unit in the last place of its numbers. What rounding of
    the first does after the element is measured: every stored number is moved by up to half a unit
    in its last place, and the element is applied again.

    Raises:
        ElementError: If the element is no symmetry of the first.
        CheckpointError: If one of them has tensors that the other has not.
    """
    worst = Carried(0.0, LIMIT + FOR_CONDITION * element.condition(), None)
    left = {name for name in theirs.files if not _is_ignored(theirs, name)}
    noisy = _unchecked(jittered(ours, seed=0), element)
    for (name, value), (_, moved) in zip(_moved(ours, element), noisy, strict=True):
        other = _partner(name, ours, theirs)
        left.discard(other)
        stored = theirs.files.read(other)
        if stored.shape != value.shape:
            raise CheckpointError(
                f"{other} of {theirs.path} has shape {tuple(stored.shape)}, not "
                f"{tuple(value.shape)}"
            )
        units = _units(value, stored, moved - value)
        if units > worst.units:
            worst = Carried(units, worst.limit, other)
    if left:
        raise CheckpointError(f"{theirs.path} has {sorted(left)[0][:80]!r}, the first has not")
    return worst


def _moved(ours: Checkpoint, element: NetElement) -> Iterator[tuple[str, Tensor]]:
    """All tensors after the element, which is checked on the way."""
    yield from _with_rest(ours, changes(ours, element))


def _unchecked(ours: Checkpoint, element: NetElement) -> Iterator[tuple[str, Tensor]]:
    """The same of weights beside those that the element is exact for."""

    def values() -> Iterator[tuple[str, Tensor]]:
        for number in range(ours.blocks):
            yield from block_changes(ours, element, number)
        yield from outside_changes(ours, element)

    yield from _with_rest(ours, values())


def _with_rest(
    ours: Checkpoint, changed: Iterator[tuple[str, Tensor]]
) -> Iterator[tuple[str, Tensor]]:
    done = set()
    for name, value in changed:
        done.add(name)
        yield name, value
    for name in ours.files:
        if name not in done and not _is_ignored(ours, name):
            yield name, ours.files.read(name).double()


def _is_ignored(checkpoint: Checkpoint, name: str) -> bool:
    return bool(checkpoint.family.ignored) and name.endswith(checkpoint.family.ignored)


def _partner(name: str, ours: Checkpoint, theirs: Checkpoint) -> str:
    """The tensor of the second file that one of the first becomes."""
    head = {head.own: n for n, head in ours.heads.items()}.get(name)
    if head is not None and head in theirs.heads:
        return theirs.heads[head].weight  # the embedding, where they share it
    other = theirs.prefix + name.removeprefix(ours.prefix)
    for found in (theirs.tied_decoder.get(name), name, other):
        if found is not None and found in theirs.files:
            return found
    raise CheckpointError(f"{theirs.path} has no {name[:80]!r}")


def _units(value: Tensor, stored: Tensor, noise: Tensor) -> float:
    """The largest over rows and over columns; a vector is one row."""
    exact = stored.double()
    if not stored.dtype.is_floating_point:
        return 0.0 if torch.equal(value, exact) else torch.inf
    _, exponent = torch.frexp(exact)
    digit = torch.exp2(exponent.double()) * (max(torch.finfo(stored.dtype).eps, _FINEST) / 2)
    # A rounded number is off by up to half a digit, evenly: in the mean square a twelfth of it.
    rounding = digit.square() / 12 * (exact != 0) + noise.square()
    error = (value - exact).square()
    error, rounding = (x.reshape(1, -1) if x.dim() < 2 else x.flatten(1) for x in (error, rounding))
    worst = 0.0
    for axis in (0, 1) if len(error) > 1 else (1,):
        ratio = (error.sum(dim=axis) / rounding.sum(dim=axis)).sqrt()
        ratio = torch.where(error.sum(dim=axis) == 0, 0.0, ratio)
        worst = max(worst, ratio.nan_to_num(nan=torch.inf).max().item())
    return worst
