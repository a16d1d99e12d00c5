"""How many units of a block keep their numbers in a block of another network."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.kinship.descent.chance import (
    log10,
    log_fixed_points,
    log_increasing,
    longest_increasing,
)
from transformer_nfn.kinship.descent.units import View, nearest
from transformer_nfn.space import GLOSSARY

#: Numbers in 8 bits, and how far a matrix that was stored in them may be from itself.
_LEVELS, _QUANTISED = 256, 0.03
#: Of many units and groups only so many are looked at where all blocks are tried.
_UNITS, _GROUPS = 512, 4


@dataclass(frozen=True)
class Count:
    """Units of one kind of one block of A that keep their numbers in a block of B.

    Attributes:
        label: The axis of the units.
        tensor: By which they were compared.
        kept: Units that keep their numbers; of unequal sizes, those in growing order.
        units: How many there are.
        log_p: The logarithm of the probability of as many or more, if A is a stranger.
    """

    label: str
    tensor: str
    kept: int
    units: int
    log_p: float

    @property
    def log10_p(self) -> float:
        """The same to the base 10."""
        return log10(self.log_p)

    @property
    def share(self) -> float:
        """Of the units, those that keep their numbers."""
        return self.kept / self.units

    @property
    def what(self) -> str:
        """What the units are, in words."""
        return GLOSSARY.get(self.label, self.label).partition(",")[0]


def comparable(ours: Sequence[View], theirs: Sequence[View]) -> list[tuple[View, View]]:
    """Views of the same units by the same numbers."""
    found = {(view.label, view.tensor): view for view in theirs}
    pairs = ((view, found.get((view.label, view.tensor))) for view in ours)
    return [
        (mine, other)
        for mine, other in pairs
        if other is not None
        and (mine.groups, mine.width) == (other.groups, other.width)
        and (mine.size == other.size or mine.groups == 1)
    ]


def count(
    mine: View, other: View, ours: Float[Tensor, "g u w"], theirs: Float[Tensor, "g t w"]
) -> Count:
    """Compare the units of two tensors, all or as many as `thin` left."""
    found = nearest(ours, theirs)
    groups, size = found.shape
    if mine.size != other.size:
        kept = longest_increasing(found[0].tolist())
        log_p = log_increasing(kept, size)
    else:
        kept = int((found == torch.arange(size)).sum())
        log_p = log_fixed_points(kept, size, groups)
    return Count(mine.label, mine.tensor, kept, groups * size, log_p)


def first_look(pairs: Sequence[tuple[View, View]]) -> list[tuple[View, View]]:
    """Those by which all pairs of blocks are tried: of the axis with the most units."""
    most = max((mine.groups * mine.size for mine, _ in pairs), default=0)
    labels = {mine.label for mine, _ in pairs if mine.groups * mine.size == most}
    return [(mine, other) for mine, other in pairs if mine.label in labels]


def thin(mine: View, other: View, tensor: Tensor, *, ours: bool) -> Float[Tensor, "g u w"]:
    """Some of the units, the same numbers in both networks."""
    rows = (mine if ours else other).rows(tensor)
    groups = _spread(mine.groups, _GROUPS)
    limit = _UNITS // len(groups)
    if mine.size == other.size or ours:
        return rows[groups][:, _spread(mine.size, limit)].clone()
    return rows[groups].clone()


def _spread(size: int, most: int) -> Tensor:
    """Numbers below a size, evenly spread."""
    return torch.linspace(0, size - 1, min(size, most)).round().long()


@dataclass(frozen=True)
class Closeness:
    """How near two tensors of the same shape are.

    Attributes:
        cosine: Of all their numbers.
        difference: Relative to the second.
        digits: What storing them with fewer digits may do to it.
    """

    cosine: float
    difference: float
    digits: float

    @property
    def is_copy(self) -> bool:
        """Whether they differ by no more than their digits."""
        return self.difference <= self.digits


def closeness(one: Tensor, two: Tensor, eps: float) -> Closeness:
    """Compare two tensors of the same shape.

    Args:
        one: In float32.
        two: In float32.
        eps: Of the coarser dtype that they were stored in.
    """
    exact = torch.float64  # a sum of millions in float32 is off by a thousandth
    ours, theirs, both, apart = (
        numbers.sum(dtype=exact).item()
        for numbers in (one.square(), two.square(), one * two, (one - two).square())
    )
    cosine = both / max(math.sqrt(ours * theirs), 1e-300)
    difference = math.sqrt(apart / max(theirs, 1e-300))
    quantised = one.dim() > 1 and (_few_values(one) or _few_values(two))
    return Closeness(cosine, difference, max(eps, _QUANTISED if quantised else 0.0))


def _few_values(tensor: Tensor) -> bool:
    """Whether a row or a column has no more values than 8 bits have: it was quantised."""
    matrix = tensor.flatten(1)
    return any(
        len(line) > _LEVELS * 4 // 3 and len(torch.unique(line)) <= _LEVELS
        for line in (matrix[0], matrix[:, 0])
    )
