"""How many units of a block keep their numbers in a block of another network."""

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

#: Of many units and groups only so many are looked at where all blocks are tried; where sizes
#: differ, so many of the other network.
_UNITS, _GROUPS, _OTHERS = 512, 4, 2048


@dataclass(frozen=True)
class Count:
    """Units of one kind of one block of A that keep their numbers in a block of B.

    Attributes:
        label: The axis of the units.
        tensor: By which they were compared.
        kept: Units that keep their numbers; of unequal sizes, those that keep their order.
        units: How many there are.
        ordered: Whether order was counted.
        cosine: The mean cosine with the nearest unit.
        log_p: The logarithm of the probability of as many or more, if A is a stranger.
    """

    label: str
    tensor: str
    kept: int
    units: int
    ordered: bool
    cosine: float
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
    found, cosines = nearest(ours, theirs)
    groups, size = found.shape
    ordered = mine.size != other.size
    if ordered:
        kept = longest_increasing(found[0].tolist())
        log_p = log_increasing(kept, size)
    else:
        kept = int((found == torch.arange(size)).sum())
        log_p = log_fixed_points(kept, groups)
    cosine = cosines.mean().item()
    return Count(mine.label, mine.tensor, kept, groups * size, ordered, cosine, log_p)


def first_look(pairs: Sequence[tuple[View, View]]) -> list[tuple[View, View]]:
    """Those by which all pairs of blocks are tried: of the axis with the most units."""
    most = max((mine.groups * mine.size for mine, _ in pairs), default=0)
    labels = {mine.label for mine, _ in pairs if mine.groups * mine.size == most}
    return [(mine, other) for mine, other in pairs if mine.label in labels]


def thin(mine: View, other: View, tensor: Tensor, *, ours: bool) -> Float[Tensor, "g u w"]:
    """Some of the units, the same numbers in both networks."""
    rows = (mine if ours else other).rows(tensor)
    groups = spread(mine.groups, _GROUPS)
    limit = _UNITS // len(groups)
    if mine.size == other.size or ours:
        return rows[groups][:, spread(mine.size, limit)].clone()
    return rows[groups][:, spread(other.size, _OTHERS)].clone()


def spread(size: int, most: int) -> Tensor:
    """Numbers below a size, evenly spread."""
    return torch.linspace(0, size - 1, min(size, most)).round().long()
