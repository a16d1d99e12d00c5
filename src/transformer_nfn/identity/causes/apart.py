"""How far two files are apart, tensor by tensor, in the coordinates that they have."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint

_ROWS = 4096
#: Differences of so many last digits are rounding.
_DIGITS = 4.0


def moved_tensors(ours: Checkpoint, theirs: Checkpoint) -> list[str]:
    """Names of tensors that only one has, or whose numbers differ by more than rounding."""
    one, two = ours.files.entries, theirs.files.entries
    return sorted(
        name
        for name in {*one, *two}
        if name not in one
        or name not in two
        or one[name].shape != two[name].shape
        or apart(ours, theirs, name) > 0
    )


def apart(ours: Checkpoint, theirs: Checkpoint, name: str) -> float:
    """How far a tensor is apart, relative to its size; 0 if only by rounding."""
    dtypes = [checkpoint.files.entry(name).dtype for checkpoint in (ours, theirs)]
    eps = max((torch.finfo(d).eps for d in dtypes if d.is_floating_point), default=0.0)
    off = size = beyond = 0.0
    for one, two in zip(slices(ours, name), slices(theirs, name), strict=True):
        gap = (one - two).abs()
        beyond += float((gap > _DIGITS * eps * torch.maximum(one.abs(), two.abs())).sum())
        off, size = off + float(gap.square().sum()), size + float(one.square().sum())
    return float((off / max(size, 1e-300)) ** 0.5) if beyond else 0.0


def slices(checkpoint: Checkpoint, name: str) -> Iterator[Tensor]:
    """A tensor in float64, some rows at a time."""
    if not checkpoint.files.entry(name).shape:
        yield checkpoint.files.read(name).double()
        return
    for rows in checkpoint.files.chunks(name, _ROWS):
        yield rows.double()
