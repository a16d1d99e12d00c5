"""The weights of many transformers: networks × channels × blocks of one declaration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.container import Container, Picks, picked_networks
from transformer_nfn.space.errors import ShapeError
from transformer_nfn.space.spec import BlockSpec

_DIMS = {"networks": 0, "channels": 1, "blocks": 2}


@dataclass(frozen=True, eq=False)
class WeightBatch(Container):
    """An immutable bag of tensors, each "n c l" and then the axes its block declares.

    n networks of l equal blocks; c channels, 1 in a network's own weights and more between the
    layers of a neural functional. The tensors are views where that is possible; do not write
    into them. Its length is n, and iterating gives the networks one by one.

    Examples:
        >>> import torch
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
        >>> batch = WeightBatch.random(spec, networks=6, blocks=2)
        >>> batch[2:4]
        WeightBatch(n=2, c=1, l=2, BlockSpec(paper, D=4, heads=2, D_k=2, D_v=3, D_A=5))
        >>> batch["O"].shape
        torch.Size([6, 1, 2, 2, 3, 4])
    """

    spec: BlockSpec
    tensors: Mapping[str, Tensor]

    def __post_init__(self) -> None:
        """Check names, shapes, dtypes and devices."""
        block = self.spec.block
        if set(self.tensors) != set(block.tensors):
            missing = sorted(set(block.tensors) - set(self.tensors))
            unknown = sorted(set(self.tensors) - set(block.tensors))
            raise ShapeError(f"block {block.name!r}: tensors missing {missing}, unknown {unknown}")
        first = self.tensors[next(iter(block.tensors))]
        for name in block.tensors:
            tensor, wanted = self.tensors[name], self.spec.shape(name)
            if tensor.dim() != 3 + len(wanted) or tensor.shape[3:] != wanted:
                axes = " ".join(str(index) for index in block.tensors[name])
                raise ShapeError(
                    f"{name} of block {block.name!r} has axes 'n c l {axes}' = "
                    f"(n, c, l, {', '.join(map(str, wanted))}), got {tuple(tensor.shape)}"
                )
            if tensor.shape[:3] != first.shape[:3]:
                raise ShapeError(
                    f"{name} of block {block.name!r} is a batch of (n, c, l) = "
                    f"{tuple(tensor.shape[:3])}, other tensors of {tuple(first.shape[:3])}"
                )
            if not tensor.is_floating_point():
                raise ShapeError(f"{name} is {tensor.dtype}, weights are floating-point numbers")
            if (tensor.dtype, tensor.device) != (first.dtype, first.device):
                raise ShapeError(
                    f"{name} is {tensor.dtype} on {tensor.device}, other tensors are "
                    f"{first.dtype} on {first.device}; use WeightBatch.to"
                )
        ordered = {name: self.tensors[name] for name in block.tensors}
        object.__setattr__(self, "tensors", MappingProxyType(ordered))

    @staticmethod
    def random(
        spec: BlockSpec,
        *,
        networks: int,
        channels: int = 1,
        blocks: int = 1,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "WeightBatch":
        """Standard normal weights, for tests and examples."""
        batch = (networks, channels, blocks)
        tensors = {
            name: torch.randn(batch + spec.shape(name), generator=generator, dtype=dtype)
            for name in spec.block.tensors
        }
        return WeightBatch(spec, tensors)

    @staticmethod
    def from_flat(
        spec: BlockSpec, flat: Float[Tensor, "n c weights"], blocks: int
    ) -> "WeightBatch":
        """The inverse of `flat`: rows of numbers, block after block, in the declared order."""
        if flat.shape[-1] != blocks * spec.weights:
            raise ShapeError(
                f"{blocks} blocks of {spec} have {blocks * spec.weights} weights, "
                f"got rows of {flat.shape[-1]}"
            )
        by_block = flat.reshape(*flat.shape[:2], blocks, spec.weights)
        shapes = {name: spec.shape(name) for name in spec.block.tensors}
        parts = torch.split(by_block, [prod(shape) for shape in shapes.values()], dim=-1)
        return WeightBatch(
            spec,
            {
                name: part.reshape(*part.shape[:3], *shape)
                for (name, shape), part in zip(shapes.items(), parts, strict=True)
            },
        )

    @classmethod
    def cat(
        cls,
        batches: Sequence["WeightBatch"],
        along: Literal["networks", "channels", "blocks"] = "networks",
    ) -> "WeightBatch":
        """Put batches of the same spec together."""
        if not batches:
            raise ShapeError("there are no batches to put together")
        spec = batches[0].spec
        if any(batch.spec != spec for batch in batches):
            raise ShapeError(f"cannot join different specs: {[batch.spec for batch in batches]}")
        if not all(batch.spec.block.computes_as(spec.block) for batch in batches):
            raise ShapeError(
                f"these networks have the tensors of {spec.block.name!r}, but compute different "
                f"functions of them (another activation, or norms elsewhere); read them apart"
            )
        if along not in _DIMS:
            raise ShapeError(f"batches are joined along {', '.join(_DIMS)}, not {along!r:.40}")
        dim = _DIMS[along]
        return WeightBatch(
            spec, {name: torch.cat([b[name] for b in batches], dim) for name in spec.block.tensors}
        )

    @property
    def networks(self) -> int:
        """n, how many networks."""
        return self._first.shape[0]

    @property
    def channels(self) -> int:
        """c, how many channels."""
        return self._first.shape[1]

    @property
    def blocks(self) -> int:
        """l, how many blocks each network has."""
        return self._first.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of all tensors."""
        return self._first.dtype

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self._first.device

    @property
    def _first(self) -> Tensor:
        return next(iter(self.tensors.values()))

    def __len__(self) -> int:
        return self.networks

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    @overload
    def __getitem__(self, key: str) -> Tensor: ...

    @overload
    def __getitem__(self, key: Picks) -> "WeightBatch": ...

    def __getitem__(self, key: str | Picks) -> "Tensor | WeightBatch":
        """A tensor by its name, or networks by a number, a slice, a mask or a list of numbers."""
        if isinstance(key, str):
            if key not in self.tensors:
                raise KeyError(
                    f"block {self.spec.block.name!r} has no tensor {key!r:.40}, but "
                    f"{' '.join(self.tensors)}"
                )
            return self.tensors[key]
        return self.select(networks=key)

    def select(
        self,
        *,
        networks: Picks = slice(None),
        channels: slice = slice(None),
        blocks: slice = slice(None),
    ) -> "WeightBatch":
        """A part of the batch; slices are views. A number gives a batch of one network."""
        picked = picked_networks(networks, self.networks)
        return self.map(lambda tensor: tensor[picked][:, channels, blocks])

    def map(self, function: Callable[[Tensor], Tensor]) -> "WeightBatch":
        """The same function on each tensor."""
        return self.replace({name: function(tensor) for name, tensor in self.tensors.items()})

    def replace(self, tensors: Mapping[str, Tensor]) -> "WeightBatch":
        """The same spec with other tensors; those not named stay."""
        return WeightBatch(self.spec, {**self.tensors, **tensors})

    def rms(self) -> dict[str, float]:
        """The root mean square of each tensor over the whole batch, for `scaled`.

        Take it once from training data and keep it: it is not invariant under the group.
        """
        return {name: tensor.square().mean().sqrt().item() for name, tensor in self.tensors.items()}

    def scaled(self, scales: Mapping[str, float]) -> "WeightBatch":
        """Divide each tensor by one number. The group acts linearly, so this commutes with it."""
        if set(scales) != set(self.tensors) or not all(scale > 0 for scale in scales.values()):
            raise ShapeError(
                f"scales must be positive and name {sorted(self.tensors)}, got {dict(scales)}"
            )
        return self.replace({name: self.tensors[name] / scale for name, scale in scales.items()})

    def flat(self) -> Float[Tensor, "n c weights"]:
        """All weights of a network in one row, block after block, in the declared order."""
        return torch.cat([tensor.flatten(3) for tensor in self.tensors.values()], -1).flatten(2)

    def product(self, name: str) -> Tensor:
        """A declared product, such as QK, with axes "n c l" and those it declares."""
        product = self.spec.block.products[name]
        first, second, out = (
            "ncl" + "".join(index.label for index in indices)
            for indices in (*(factor.indices for factor in product.factors), product.indices)
        )
        factors = (self.tensors[factor.tensor] for factor in product.factors)
        return torch.einsum(f"{first},{second}->{out}", *factors)

    def __repr__(self) -> str:
        return f"WeightBatch(n={self.networks}, c={self.channels}, l={self.blocks}, {self.spec!r})"

    def _children(self) -> tuple[list[Any], Any]:
        return list(self.tensors.values()), (self.spec, tuple(self.tensors))

    @classmethod
    def _of_children(cls, children: Sequence[Any], context: Any) -> "WeightBatch":
        spec, names = context
        return cls._unchecked(spec=spec, tensors=dict(zip(names, children, strict=True)))

    def __reduce__(self) -> tuple[Any, ...]:
        return WeightBatch, (self.spec, dict(self.tensors))
