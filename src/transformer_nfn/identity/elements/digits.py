"""The last digit of a stored number."""

import torch
from torch import Tensor

#: The bits of a float64 that are its exponent.
_EXPONENT = 0x7FF << 52


def last_digit(tensor: Tensor) -> Tensor:
    """The distance from each number to its neighbour in its own dtype, as float64.

    Example:
        >>> last_digit(torch.tensor([1.0, 1.5, 2.0])) * 2**23
        tensor([1., 1., 2.], dtype=torch.float64)
        >>> last_digit(torch.tensor([0.0], dtype=torch.float16)) * 2**24
        tensor([1.], dtype=torch.float64)
    """
    kind = torch.finfo(tensor.dtype)
    # Below the smallest normal number the digits end at a fixed place; at 0 as well.
    size = tensor.double().abs().clamp_min(kind.smallest_normal)
    # A float64 without the bits of its fraction is the power of 2 below it.
    return size.view(torch.int64).bitwise_and_(_EXPONENT).view(torch.float64) * kind.eps
