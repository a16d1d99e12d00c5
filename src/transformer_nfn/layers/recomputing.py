"""Run something again in the backward pass instead of keeping what it made."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """`function(*arguments)`, of which the backward pass keeps nothing but the arguments.

    Under the transforms of `torch.func` it is run as it is: torch cannot do both.
    """
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return function(*arguments)
    made: Tensor = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)
    return made
