"""Elements of the symmetry group of a declared block: identity, product, inverse, action."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.group.kinds import KINDS
from transformer_nfn.space import (
    AxisView,
    BlockSpec,
    Container,
    Index,
    Picks,
    ShapeError,
    WeightBatch,
    picked_networks,
)


@dataclass(frozen=True, eq=False)
class GroupElement(Container):
    """One group element for each network and block, or one network's for all where n is 1.

    For the paper's block g = (τ, (M_i), (N_i), π_O, π_A) is the parts h, k, v, r, a. A permuted
    axis has index tensors "n l per s", a linear axis matrices "n l per s s" (see `kinds`). All
    channels of a network are moved alike.

    The group is a semidirect product: a part that is indexed by heads acts on the heads as they
    stand, and then the heads are permuted (the paper's [gW]^(Q,i) = [W]^(Q,τ(i)) (M^(τ(i)))ᵀ).
    """

    spec: BlockSpec
    parts: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        """Check that each axis with a group has a part of the right shape."""
        shapes = _part_shapes(self.spec)
        if set(shapes) != set(self.parts):
            raise ShapeError(
                f"an element for {self.spec} has the parts {sorted(shapes)}, "
                f"got {sorted(self.parts)}"
            )
        if not shapes:
            raise ShapeError(f"{self.spec} has no axis that a group acts on")
        first = next(iter(self.parts.values()))
        for label, shape in shapes.items():
            part = self.parts[label]
            if part.shape[:2] != first.shape[:2] or part.shape[2:] != shape:
                raise ShapeError(
                    f"part {label!r} has shape {tuple(part.shape)}, expected (n, l) = "
                    f"{tuple(first.shape[:2])} and then {shape}"
                )
        ordered = {label: self.parts[label] for label in shapes}
        object.__setattr__(self, "parts", MappingProxyType(ordered))

    @staticmethod
    def identity(spec: BlockSpec, *, networks: int = 1, blocks: int = 1) -> "GroupElement":
        """The element that moves nothing."""
        parts = {}
        for label in _part_shapes(spec):
            axis = spec.block.axes[label]
            outer = (networks, blocks, *(spec.size(o) for o in axis.per))
            parts[label] = KINDS[axis.kind].identity(outer, spec.size(label))
        return GroupElement(spec, parts)

    def __matmul__(self, other: "GroupElement") -> "GroupElement":
        """The product: (g @ h)(U) = g(h(U)).

        The part of g that is indexed by heads sees them after h permuted them, so it is carried
        back by the inverse of that permutation first.
        """
        if self.spec != other.spec:
            raise ShapeError(f"cannot multiply elements of {self.spec} and {other.spec}")
        parts = {}
        for label, part in self.parts.items():
            axis = self.spec.block.axes[label]
            for number, outer in enumerate(axis.per):  # from the outermost in
                if outer not in other.parts:  # a free axis stays
                    continue
                back = KINDS[self.spec.block.axes[outer].kind].inverse(other.parts[outer])
                part = _reindex(part, back, dim=2 + number)
            parts[label] = KINDS[axis.kind].compose(other.parts[label], part)
        return GroupElement(self.spec, parts)

    def inverse(self) -> "GroupElement":
        """The element that undoes this one."""
        parts = {}
        for label, part in self.parts.items():
            axis = self.spec.block.axes[label]
            undone = KINDS[axis.kind].inverse(part)
            for number, outer in reversed(list(enumerate(axis.per))):  # from the innermost out
                if outer in self.parts:
                    undone = _reindex(undone, self.parts[outer], dim=2 + number)
            parts[label] = undone
        return GroupElement(self.spec, parts)

    def __call__(self, batch: WeightBatch) -> WeightBatch:
        """The action on weights, gU (Definition "Group action")."""
        if batch.spec != self.spec:
            raise ShapeError(f"an element of {self.spec} does not act on {batch.spec}")
        networks, blocks = self._batch
        if networks not in (1, batch.networks) or blocks != batch.blocks:
            raise ShapeError(
                f"an element for n={networks} networks of l={blocks} blocks does not act on "
                f"{batch!r}; n must be 1 or the same, l the same"
            )
        return batch.replace(
            {
                name: self.act(batch[name], indices)
                for name, indices in self.spec.block.tensors.items()
            }
        )

    def act(self, tensor: Tensor, indices: tuple[Index, ...]) -> Tensor:
        """The action on any tensor "n c l axes…" with declared axes, a product for example."""
        axes = self.spec.block.axes
        # Indexed axes first, the innermost before all: their parts speak of heads, or of neurons of
        # experts, that are not permuted yet.
        for index in sorted(indices, key=lambda index: -len(axes[index.label].per)):
            if index.label in self.parts:
                axis = axes[index.label]
                view = AxisView(indices, index.label, axis.per)
                part = self.parts[index.label].to(tensor.device)
                moved = KINDS[axis.kind].act(view.unfold(tensor), part, index.dual)
                tensor = view.fold(moved, tuple(tensor.shape))
        return tensor

    @classmethod
    def cat(cls, batches: Sequence["GroupElement"]) -> "GroupElement":
        """Put the elements of several batches of networks together."""
        if not batches:
            raise ShapeError("there are no elements to put together")
        spec = batches[0].spec
        if any(element.spec != spec for element in batches):
            raise ShapeError(f"cannot join elements of {[element.spec for element in batches]}")
        labels = batches[0].parts
        return GroupElement(
            spec, {label: torch.cat([g.parts[label] for g in batches]) for label in labels}
        )

    def __len__(self) -> int:
        return self._batch[0]

    def __getitem__(self, key: Picks) -> "GroupElement":
        """The elements of some networks, by a number, a slice, a mask or a list of numbers."""
        picked = picked_networks(key, len(self))
        return GroupElement(self.spec, {label: part[picked] for label, part in self.parts.items()})

    def _children(self) -> tuple[list[Any], Any]:
        return list(self.parts.values()), (self.spec, tuple(self.parts))

    @classmethod
    def _of_children(cls, children: Sequence[Any], context: Any) -> "GroupElement":
        spec, labels = context
        return cls._unchecked(spec=spec, parts=dict(zip(labels, children, strict=True)))

    def __reduce__(self) -> tuple[Any, ...]:
        return GroupElement, (self.spec, dict(self.parts))

    @property
    def _batch(self) -> tuple[int, int]:
        networks, blocks = next(iter(self.parts.values())).shape[:2]
        return networks, blocks

    def __repr__(self) -> str:
        networks, blocks = self._batch
        return f"GroupElement(n={networks}, l={blocks}, parts {' '.join(self.parts)}, {self.spec})"


def _part_shapes(spec: BlockSpec) -> dict[str, tuple[int, ...]]:
    """For each axis with a group: the shape of its part after n and l."""
    return {
        label: (
            *(spec.size(outer) for outer in axis.per),
            *KINDS[axis.kind].part_shape(spec.size(label)),
        )
        for label, axis in spec.block.axes.items()
        if axis.kind in KINDS
    }


def _reindex(part: Tensor, permutation: Tensor, dim: int) -> Tensor:
    """Gather `part` along `dim` by permutations "n l per s", whose `per` come first in the part."""
    *outer, size = permutation.shape
    shape = [*outer, *[1] * (dim - len(outer)), size, *[1] * (part.dim() - dim - 1)]
    return torch.take_along_dim(part, permutation.view(shape), dim=dim)
