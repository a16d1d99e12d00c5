"""How far two files are apart, tensor by tensor, in the coordinates that they have."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.elements.digits import last_digit

_ROWS = 4096
#: Differences of so many last digits are rounding.
_DIGITS = 4.0


def moved_tensors(ours: Checkpoint, theirs: Checkpoint) -> list[str]:
    """Tensors of the first whose numbers differ from the second's by more than rounding.

    They are told by the names of their family, so another prefix moves nothing. Neither does a head
    that is written out, or a buffer that is no weight.
    """
    others = {_bare(theirs, name): name for name in theirs.files}
    pairs = [(name, others[bare]) for name in ours.files if (bare := _bare(ours, name)) in others]
    return [
        name
        for name, other in pairs
        if not name.endswith(ours.family.ignored or "\0")
        and (
            ours.files.entry(name).shape != theirs.files.entry(other).shape
            or apart(ours, theirs, name, other) > 0
        )
    ]


def _bare(checkpoint: Checkpoint, name: str) -> str:
    return name.removeprefix(checkpoint.prefix)


def apart(ours: Checkpoint, theirs: Checkpoint, name: str, other: str | None = None) -> float:
    """How far a tensor is apart, relative to its size; 0 if only by rounding.

    Args:
        ours: The first.
        theirs: The second.
        name: The tensor.
        other: What the second calls it, if something else.
    """
    off = size = beyond = 0.0
    pairs = zip(_stored(ours, name), _stored(theirs, other or name), strict=True)
    for stored, again in pairs:
        one, two = stored.double(), again.double()
        gap = (one - two).abs()
        beyond += float((gap > _DIGITS * torch.maximum(_digit(stored), _digit(again))).sum())
        off, size = off + float(gap.square().sum()), size + float(one.square().sum())
    return float((off / max(size, 1e-300)) ** 0.5) if beyond else 0.0


def _digit(stored: Tensor) -> Tensor:
    """The last digit of each number; whole numbers are exact."""
    if stored.dtype.is_floating_point:
        return last_digit(stored)
    return torch.zeros(stored.shape, dtype=torch.float64)


def slices(checkpoint: Checkpoint, name: str) -> Iterator[Tensor]:
    """A tensor in float64, some rows at a time."""
    return (rows.double() for rows in _stored(checkpoint, name))


def _stored(checkpoint: Checkpoint, name: str) -> Iterator[Tensor]:
    if not checkpoint.files.entry(name).shape:
        yield checkpoint.files.read(name)
        return
    yield from checkpoint.files.chunks(name, _ROWS)
