"""Whether a tensor is another with fewer digits, and which of them has fewer."""

import pytest
import torch
from torch import Tensor

from transformer_nfn.kinship.descent.closeness import is_copy, roundings

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def coarser(one: Tensor, two: Tensor, ours: torch.dtype, theirs: torch.dtype) -> int | None:
    """Which has fewer digits; None if both have the same or it is no copy."""
    found = roundings(one, two, ours, theirs)
    return found.index(True) if sum(found) == 1 else None


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def eight_bits(tensor: Tensor) -> Tensor:
    step = tensor.abs().amax(dim=1, keepdim=True) / 127
    return (tensor / step).round() * step


@pytest.mark.parametrize(
    ("dtype", "stored"), [(BF16, BF16), (BF16, F16), (BF16, F32), (F16, F16), (F16, F32)]
)
@pytest.mark.parametrize("shape", [(7,), (400,), (64, 500)])
def test_rounded_numbers_are_a_copy_however_they_are_stored(
    dtype: torch.dtype, stored: torch.dtype, shape: tuple[int, ...]
) -> None:
    fine = numbers(*shape).clamp(-0.1, 0.1) + 0.2  # all of them have a place in both dtypes
    coarse = fine.to(dtype).float()
    assert is_copy(fine, coarse, F32, stored)
    assert coarser(fine, coarse, F32, stored) == 1
    assert coarser(coarse, fine, stored, F32) == 0
    assert coarser(coarse, coarse, stored, F32) is None


@pytest.mark.parametrize("seed", range(20))
def test_numbers_that_stand_there_many_times_are_rounded_alike(seed: int) -> None:
    """Of 8 bits each, and then of bfloat16: few numbers, of which some are rounded to one side."""
    whole = numbers(40, 500, seed=seed)
    step = whole.abs().max() / 127
    fine = (whole / step).round() * step
    assert coarser(fine, fine.to(BF16).float(), F32, BF16) == 1


def test_two_roundings_of_one_tensor_are_copies() -> None:
    fine = numbers(64, 500)
    assert is_copy(fine.to(BF16).float(), fine.to(F16).float(), BF16, F16)
    assert coarser(fine.to(BF16).float(), fine.to(F16).float(), BF16, F16) == 0


def test_eight_bits() -> None:
    fine = numbers(40, 500)
    fine[3, 5] = 1.0  # of its line most are rounded to few numbers
    assert is_copy(fine, eight_bits(fine), F32, F32)
    assert coarser(fine, eight_bits(fine), F32, F32) == 1
    assert not is_copy(fine, eight_bits(numbers(40, 500, seed=1)), F32, F32)
    other = eight_bits(fine)
    other[7, 9] += 3 * fine[7].abs().max() / 127  # one number of all
    assert not is_copy(fine, other, F32, F32)


@pytest.mark.parametrize("value", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(512,), (3, 512)])
def test_one_number_everywhere_is_no_rounding_of_anything(
    value: float, shape: tuple[int, ...]
) -> None:
    plain = torch.full(shape, value)
    for other in (plain + numbers(*shape), plain + 0.01):
        assert not is_copy(plain, other, F32, F32)
        assert coarser(plain, other, F32, F32) is None


@pytest.mark.parametrize("size", [0.02, 0.1, 0.2])
def test_training_that_moves_by_less_than_a_digit_is_no_rounding(size: float) -> None:
    """Of a file of bfloat16, or of 8 bits, that was read with more digits and then trained."""
    start = numbers(64, 500).to(BF16).float()
    digit = 2.0**-8 * start.abs()
    for change in (
        size
        * digit
        * torch.randn(64, 500, generator=torch.Generator().manual_seed(1)).clamp(-2, 2),
        -size * 2.0**-7 * start,  # weight decay
    ):
        assert not is_copy(start, start + change, F32, F32)
    quantised = eight_bits(start)
    step = start.abs().amax(dim=1, keepdim=True) / 127
    moved = quantised + size * step * torch.sign(numbers(64, 500, seed=2))
    assert not is_copy(quantised, moved, F32, F32)
