"""What the checks of an element share: limits, and errors that say which one was passed."""

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity.elements.canonical import Norm

#: Largest condition number of a matrix. In float64 its inverse then has four digits left; what is
#: stored in float32 has none from 2e7 on. An honest element is far below both.
CONDITION = 1e12
#: Scales, singular values and lengths lie between this and its inverse: a weight of usual size,
#: times two of them, still is a normal number in float32, whose exponents end at -126 and 127.
SCALE = 2.0**48
#: The same for norms, where 5e-33 was seen in a trained network: normal numbers in float32.
NORM = 2.0**126
#: How far float64 may be from what must hold exactly.
EXACT = 1e-9
#: Rounding to the stored dtype may take this much of a row when a gauge is laid over it: a mean, or
#: a constant against another. More is allowed only where the file itself has about as much.
LOST = 0.1
GREW = 16.0


def stranger(checkpoint: Checkpoint) -> str:
    """The first tensor whose use is not known, in words."""
    name = checkpoint.unknown[0]
    return f"a tensor {name[:100]!r} whose use is not known, and a loader may take it for another"


class ElementError(CheckpointError):
    """Something that is no symmetry of the network it is said to be one of."""


def check_scale(scale: Tensor, name: str, *, positive: bool = False, limit: float = SCALE) -> None:
    """Raise unless numbers have an inverse, and neither they nor it are absurdly large."""
    if positive and not (scale > 0).all():
        raise ElementError(f"{name} is not positive")
    size = scale.abs()
    if not ((size >= 1 / limit) & (size <= limit)).all():
        raise ElementError(f"{name} is not between {1 / limit:.1e} and {limit:.1e} in size")


def check_equal(given: Tensor, wanted: Tensor, name: str) -> None:
    """Raise unless numbers are what they must be, up to what float64 does."""
    error = (given - wanted).abs().max().item()
    if not error <= EXACT * max(1e-300, wanted.abs().max().item()):
        raise ElementError(f"{name} has no choice here and is off by {error:.1e}")


def check_norm(checkpoint: Checkpoint, given: Norm, wanted: Norm, place: str, norm: str | None,
                *, free: bool) -> None:  # fmt: skip
    """One norm of a gauge: what it must be, or where it is free a scale that has an inverse."""
    if not free or norm is None:
        for part, value, other in zip(("scale", "shift"), given, wanted, strict=True):
            check_equal(value, other, f"{place}.{part}")
        return
    check_scale(given[0], f"{place}.scale", limit=NORM)
    if f"{norm}.bias" not in checkpoint.files:
        check_equal(given[1], torch.zeros_like(given[1]), f"{place}.shift")


def check_laid(laid: Tensor, under: Tensor, own: Tensor, dtype: torch.dtype, place: str) -> None:
    """Raise if what is laid over the rows of a tensor is so large that rounding takes the rows.

    Args:
        laid: Sizes of the rows with it.
        under: Sizes of the rows without; small ones count as the root mean square of all.
        own: Sizes of the rows as the file has them, in any order.
        dtype: In which they are stored.
        place: What error messages call it.
    """
    if not laid.numel():
        return
    under = torch.maximum(under, under.square().mean().sqrt())
    allowed = (LOST / (torch.finfo(dtype).eps / 2)) * under
    if not (laid <= torch.maximum(allowed, GREW * own.max())).all():
        raise ElementError(
            f"{place}: what is laid over it is so large that rounding to {dtype} leaves nothing of "
            f"what it is laid over"
        )
