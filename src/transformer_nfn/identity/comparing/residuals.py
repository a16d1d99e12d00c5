"""How far two networks are from each other, unit by unit, in multiples of what rounding does.

A whole tensor's norm would hide one neuron among thousands, so every unit counts by itself. And
since a small change of every unit would pass, all units of a kind count together as well: what
rounding does to many of them is known far better than what it does to one.
"""

from dataclasses import dataclass
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.identity.comparing.units import Units
from transformer_nfn.space import BlockSpec

#: What many numbers together may be off by, in multiples of what rounding does to both files.
POOLED = 1.4
#: What is added to it for a unit of n numbers, divided by √n: so much rounding spreads.
SPREAD = 5.5


@dataclass(frozen=True)
class Residual:
    """The worst unit of a kind, or all units of a kind together.

    Attributes:
        kind: What it is: ``Q K`` of a head, ``A`` of a neuron, or the name of a tensor.
        unit: Which one, counted through; None for all together.
        value: The distance, in multiples of what rounding does to both files.
        limit: What it may be at most.
        beyond: All units of the kind that are beyond their limit.
        leans: Whether it is the strongest direction of the difference, and not its size.
        why: In words, where it is no distance.
    """

    kind: str
    unit: int | None
    value: float
    limit: float
    beyond: tuple[int, ...] = ()
    leans: bool = False
    why: str | None = None

    @property
    def ratio(self) -> float:
        """The distance as a part of its limit."""
        return self.value / self.limit if self.value == self.value else float("inf")


def limit_for(numbers: int) -> float:
    """What a unit of so many independent numbers may be off by."""
    return POOLED + SPREAD / sqrt(numbers)


def judged(
    kind: str, squares: Float[Tensor, "*u"], expected: Float[Tensor, "*u"], numbers: int
) -> list[Residual]:
    """The worst unit of a kind, and all of them together.

    Args:
        kind: What they are.
        squares: Squared distances.
        expected: Their mean squares if there is nothing but rounding.
        numbers: How many independent numbers make a unit.
    """
    squares, expected = squares.flatten(), expected.flatten()
    shares = torch.where(squares == 0, 0.0, squares / expected.clamp_min(1e-300))
    # Numbers so large that nothing is known of their rounding explain nothing.
    shares = torch.where(expected.isfinite(), shares, torch.inf).nan_to_num(nan=torch.inf)
    limit = limit_for(numbers)
    worst = int(shares.argmax())
    beyond = torch.nonzero(shares > limit**2).flatten().tolist()
    found = [Residual(kind, worst, sqrt(shares[worst].item()), limit, tuple(beyond))]
    if len(shares) > 1:
        together = sqrt(shares.mean().item())
        found.append(Residual(kind, None, together, limit_for(numbers * len(shares))))
    return found


def judged_units(squares: Units, expected: Units, spec: BlockSpec) -> list[Residual]:
    """The same for all kinds of units of a block."""
    found = []
    for kind, unit in spec.block.units.items():
        numbers = 1 if unit.single else spec.sizes["D"]  # at the least
        found += judged(kind, squares[kind], expected[kind], numbers)
    return found
