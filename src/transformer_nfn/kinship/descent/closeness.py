"""How near two tensors are, and whether one is the other with fewer digits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

#: Numbers in 8 bits.
_LEVELS = 256
#: Rounding to a nearest step, with what float32 adds to it.
_HALF = 0.51
#: Of two roundings of one number this part is the same.
_EQUAL = 0.9
#: Numbers that are looked at at once.
_AT_ONCE = 2**24


@dataclass(frozen=True)
class Closeness:
    """How near two tensors of the same shape are.

    Attributes:
        cosine: Of all their numbers.
        difference: Relative to the second.
        is_copy: One is the other, rounded to its dtype or to 8 bits.
    """

    cosine: float
    difference: float
    is_copy: bool


def closeness(one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype) -> Closeness | None:
    """Compare two tensors of the same shape; None if one of them is 0.

    Args:
        one: In float32.
        two: In float32.
        ours: How the first was stored.
        theirs: How the second was stored.
    """
    sums = [0.0] * 4
    for a, b in _pieces(one, two):
        numbers = (a.square(), b.square(), a * b, (a - b).square())
        for place, each in enumerate(numbers):  # in float32 a sum of millions is a thousandth off
            sums[place] += each.sum(dtype=torch.float64).item()
    squares, other_squares, both, apart = sums
    if squares == 0 or other_squares == 0:
        return None
    return Closeness(
        both / math.sqrt(squares * other_squares),
        math.sqrt(apart / other_squares),
        is_copy(one, two, ours, theirs),
    )


def is_copy(one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype) -> bool:
    """Whether one tensor is the other, rounded to its dtype or to 8 bits."""
    if torch.equal(one, two):
        return True
    if ours != theirs and _rounded(one, two, ours, theirs):
        return True
    return _quantised(one, two) or _quantised(two, one)


def coarser(one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype) -> int | None:
    """Which of two copies has fewer digits, 0 or 1; None if both have the same or it is no copy."""
    if torch.equal(one, two):
        return None
    if ours != theirs and _rounded(one, two, ours, theirs):
        coarse = max(ours, theirs, key=lambda dtype: torch.finfo(dtype).eps)
        held = [torch.equal(each.to(coarse).float(), each) for each in (one, two)]
    else:
        held = [_quantised(one, two), _quantised(two, one)]
    return held.index(True) if sum(held) == 1 else None


def _pieces(one: Tensor, two: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    flat = one.reshape(-1), two.reshape(-1)
    for begin in range(0, one.numel(), _AT_ONCE):
        a, b = (numbers[begin : begin + _AT_ONCE] for numbers in flat)
        yield a, b


def _rounded(one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype) -> bool:
    """Whether they are the same in the coarser dtype, up to a last digit here and there."""
    coarse = max(ours, theirs, key=lambda dtype: torch.finfo(dtype).eps)
    infos = [torch.finfo(dtype) for dtype in (ours, theirs)]
    least = max(info.smallest_normal * info.eps for info in infos)
    equal = 0
    for a, b in _pieces(one, two):
        digit = torch.finfo(coarse).eps * torch.maximum(a.abs(), b.abs()) + least
        if bool(((a - b).abs() > digit).any()):
            return False
        equal += int((a.to(coarse) == b.to(coarse)).sum())
    return equal >= _EQUAL * one.numel()


def _quantised(coarse: Tensor, fine: Tensor) -> bool:
    """Whether along some axis each line of the first has few values, half a step from the other."""
    for axis in range(coarse.dim()):
        length = coarse.shape[axis]
        if length * 3 <= _LEVELS * 4:
            continue
        lines, others = (t.movedim(axis, -1).reshape(-1, length) for t in (coarse, fine))
        some = torch.linspace(0, len(lines) - 1, min(len(lines), 8)).long().tolist()
        if any(len(torch.unique(lines[line])) > _LEVELS for line in some):
            continue
        ordered = lines.sort(dim=-1).values.diff(dim=-1)
        steps = ordered.where(ordered > 0, torch.inf).amin(dim=-1, keepdim=True)
        if bool(((lines - others).abs() <= _HALF * steps).all()):
            return True
    return False
