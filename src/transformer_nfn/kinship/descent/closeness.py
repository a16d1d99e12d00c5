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
#: Numbers that are looked at at once, and to begin with.
_AT_ONCE, _SAMPLE = 2**24, 64
#: And of which those are counted that stand there several times.
_DISTINCT = 2**16
#: Root mean square of what rounding leaves out, in last digits.
_EVEN = 1 / math.sqrt(12)


@dataclass(frozen=True)
class Closeness:
    """How near two tensors of the same shape are.

    Attributes:
        cosine: Of all their numbers.
        difference: Relative to the second.
        is_copy: One is the other, rounded to a dtype or to 8 bits.
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
    """Whether one tensor is the other, rounded to a dtype or to 8 bits."""
    return any(roundings(one, two, ours, theirs))


def roundings(
    one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype
) -> tuple[bool, bool]:
    """Whether the first is the second, rounded, and the other way round; both if they are equal."""
    if torch.equal(one, two):
        return True, True
    # Numbers of few digits are often stored with more: what holds them all is what counts.
    held = _held_in(one, ours), _held_in(two, theirs)
    if held[0] != held[1]:
        digits = [torch.finfo(dtype).eps for dtype in held]
        if _rounded(one, two, *held):
            return digits[0] > digits[1], digits[1] > digits[0]
    return _quantised(one, two), _quantised(two, one)


def _held_in(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype with the fewest digits that holds all numbers of a tensor."""
    some = tensor.reshape(-1)[:_SAMPLE]
    for few in (torch.bfloat16, torch.float16):
        if torch.finfo(few).eps <= torch.finfo(dtype).eps:
            return dtype
        if all(torch.equal(each.to(few).float(), each) for each in (some, tensor)):
            return few
    return dtype


def _by_rounding(coarse: Tensor, fine: Tensor, digit: Tensor) -> bool:
    """Whether what was left out is spread as rounding spreads it.

    That is evenly over half a last digit to both sides. Training that moves numbers by less than a
    digit leaves them nearer to where they were, or to one side of it.

    Args:
        coarse: The rounded numbers.
        fine: The others.
        digit: The last digit of each, or of all of a line.
    """
    some = (fine != coarse) & (coarse != 0)
    off = ((fine - coarse) / digit)[some] * coarse[some].sign()
    # Numbers that stand there many times are all rounded alike, and count as fewer.
    times = torch.unique(fine[some][:_DISTINCT], return_counts=True)[1].double()
    chance = 5 * (times.square().sum().sqrt() / times.sum()).item() if len(times) else 1.0
    if chance >= 1:  # too few to say
        return True
    size, mean = off.square().mean().sqrt().item(), off.mean().item()
    return size >= _EVEN - 0.03 - 0.13 * chance and abs(mean) <= 0.05 + _EVEN * chance


def _pieces(one: Tensor, two: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    flat = one.reshape(-1), two.reshape(-1)
    for begin in range(0, one.numel(), _AT_ONCE):
        a, b = (numbers[begin : begin + _AT_ONCE] for numbers in flat)
        yield a, b


def _rounded(one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype) -> bool:
    """Whether they are the same in the coarser dtype, up to a last digit here and there."""
    coarse = max(ours, theirs, key=lambda dtype: torch.finfo(dtype).eps)
    rounded, other = (one, two) if coarse == ours else (two, one)
    infos = [torch.finfo(dtype) for dtype in (ours, theirs)]
    least = max(info.smallest_normal * info.eps for info in infos)
    equal = 0
    for a, b in _pieces(one, two):
        digit = torch.finfo(coarse).eps * torch.maximum(a.abs(), b.abs()) + least
        if bool(((a - b).abs() > digit).any()):
            return False
        equal += int((a.to(coarse) == b.to(coarse)).sum())
    if equal < _EQUAL * one.numel():
        return False
    first, second = next(_pieces(rounded, other))
    size = first.abs().clamp_min(torch.finfo(coarse).smallest_normal)
    digit = torch.exp2(torch.frexp(size).exponent - 1.0) * torch.finfo(coarse).eps
    return _by_rounding(first, second, digit)


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
        steps = steps.where(steps.isfinite(), 0)  # one number only: the other has to have it too
        if bool(((lines - others).abs() <= _HALF * steps).all()):
            return _by_rounding(lines, others, steps.where(steps > 0, 1))
    return False
