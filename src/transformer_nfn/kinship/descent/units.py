"""Units of a block that could stand in any order when training began, and what each is made of."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_nfn.space import BlockSpec, Kind

#: Units of fewer numbers than this are not told apart.
_NUMBERS = 8
#: Units that are compared with all others at once.
_AT_ONCE = 1024
#: Kinds of axes whose coordinates are alike before training: a rotary one has a frequency for each.
_ALIKE = (Kind.PERMUTED, Kind.LINEAR)


@dataclass(frozen=True)
class View:
    """The units of one axis as one tensor shows them.

    Attributes:
        label: The axis.
        tensor: The tensor.
        outer: Places of the axes that have such units each for itself.
        place: Place of the axis.
        groups: How many there are of the outer ones.
        size: Units in each.
        width: Numbers of one unit.
    """

    label: str
    tensor: str
    outer: tuple[int, ...]
    place: int
    groups: int
    size: int
    width: int

    def rows(self, tensor: Tensor) -> Float[Tensor, "g u w"]:
        """The units of a tensor of the declared axes, without what all of a group share."""
        rest = [i for i in range(tensor.dim()) if i != self.place and i not in self.outer]
        rows = tensor.permute(*self.outer, self.place, *rest).reshape(self.groups, self.size, -1)
        return rows - rows.mean(dim=1, keepdim=True)


def views(spec: BlockSpec) -> list[View]:
    """Every axis whose coordinates are alike, by every tensor that has it."""
    return list(_views(spec))


def _views(spec: BlockSpec) -> Iterator[View]:
    for label, axis in spec.block.axes.items():
        if axis.kind not in _ALIKE or spec.size(label) < 2:
            continue
        for name, indices in spec.block.tensors.items():
            labels = [index.label for index in indices]
            if label not in labels or any(outer not in labels for outer in axis.per):
                continue
            shape = spec.shape(name)
            outer, place = tuple(map(labels.index, axis.per)), labels.index(label)
            groups = 1
            for one in outer:
                groups *= shape[one]
            width = torch.Size(shape).numel() // (groups * shape[place])
            if width >= _NUMBERS:
                yield View(label, name, outer, place, groups, shape[place], width)


def nearest(
    ours: Float[Tensor, "g u w"], theirs: Float[Tensor, "g t w"]
) -> tuple[Int[Tensor, "g u"], Float[Tensor, "g u"]]:
    """For each unit the number of the one of the other network that points most the same way.

    Returns:
        These numbers, and the cosines.
    """
    unit = torch.nn.functional.normalize
    numbers, cosines = [], []
    for one, two in zip(ours, unit(theirs, dim=-1), strict=True):
        found = [(unit(some, dim=-1) @ two.T).max(dim=-1) for some in one.split(_AT_ONCE)]
        numbers.append(torch.cat([each.indices for each in found]))
        cosines.append(torch.cat([each.values for each in found]))
    return torch.stack(numbers), torch.stack(cosines)
