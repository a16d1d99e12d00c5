"""What torch does with a tensor, done with all tensors of a batch: move, pin, join, transform."""

from collections.abc import Callable, Iterator, Sequence
from operator import index as whole_number
from types import MappingProxyType
from typing import Any, SupportsIndex, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data._utils.collate import default_collate_fn_map

from transformer_nfn.space.errors import ShapeError

#: A class of containers. Not `Self`, which run-time checks of shapes do not know in methods.
_Kind = TypeVar("_Kind", bound="Container")


class Container:
    """Tensors of the same networks under one roof, which torch can look into.

    A subclass says what its children are and how to put them together again; it is then a pytree
    (`torch.func`, `torch.utils.checkpoint` and others find its tensors), and what a `DataLoader`
    gets of a dataset is joined to one batch.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        pytree.register_pytree_node(
            cls,
            lambda container: container._children(),
            lambda children, context: cls._of_children(list(children), context),
            serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
            flatten_with_keys_fn=_with_keys,
        )
        default_collate_fn_map[cls] = _collate

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError

    def __iter__(self: _Kind) -> Iterator[_Kind]:
        return (self[number] for number in range(len(self)))

    @classmethod
    def _unchecked(cls: type[_Kind], **fields: Any) -> _Kind:
        """One of its kind with these fields, which are not looked at."""
        made = object.__new__(cls)
        for name, value in fields.items():
            frozen = MappingProxyType(value) if type(value) is dict else value
            object.__setattr__(made, name, frozen)
        return made

    def _children(self) -> tuple[list[Any], Any]:
        """Tensors, or what has them, and all else that is needed to build it again."""
        raise NotImplementedError

    @classmethod
    def _of_children(cls: type[_Kind], children: Sequence[Any], context: Any) -> _Kind:
        """The inverse of `_children`, without checks: torch puts all kinds of things there."""
        raise NotImplementedError

    @classmethod
    def cat(cls: type[_Kind], batches: Sequence[_Kind]) -> _Kind:
        """Put the networks of several batches together."""
        raise NotImplementedError

    @classmethod
    def stack(cls: type[_Kind], nets: Sequence[_Kind]) -> _Kind:
        """One batch of single networks, such as iterating over a batch gives."""
        several = [len(net) for net in nets if len(net) != 1]
        if several:
            raise ShapeError(
                f"stack takes single networks, one of these has {several[0]}; use {cls.__name__}"
                ".cat to join batches"
            )
        return cls.cat(nets)

    def to(
        self: _Kind,
        *where: torch.device | torch.dtype | str | int,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> _Kind:
        """Move to a device, a dtype or both, as `torch.nn.Module.to` does.

        Integers, the indices of a permutation for example, keep their dtype.

        Examples:
            >>> import torch
            >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
            >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
            >>> batch = WeightBatch.random(spec, networks=2)
            >>> batch.to("cpu", torch.float64).dtype
            torch.float64
        """
        for one in where:
            if isinstance(one, torch.dtype) and dtype is None:
                dtype = one
            elif isinstance(one, torch.device | str | int) and device is None:
                device = one
            else:
                raise ShapeError(f"to takes a device, a dtype or both, not {where!r:.80}")
        if dtype is not None and not dtype.is_floating_point:
            raise ShapeError(f"weights are floating-point numbers, not {dtype}")

        def moved(tensor: Tensor) -> Tensor:
            own = dtype if tensor.is_floating_point() else None
            return tensor.to(device=device, dtype=own, non_blocking=non_blocking)

        return _mapped(moved, self)

    def pin_memory(self: _Kind) -> _Kind:
        """Move to memory from which a GPU copies quickly; a `DataLoader` calls it."""
        return _mapped(Tensor.pin_memory, self)

    def detach(self: _Kind) -> _Kind:
        """The same numbers, without their history of gradients."""
        return _mapped(Tensor.detach, self)


def _with_keys(container: Container) -> tuple[list[tuple[Any, Any]], Any]:
    """Its children with their places, for messages and for `torch.export`."""
    children, context = container._children()
    return [(pytree.SequenceKey(i), child) for i, child in enumerate(children)], context


def _mapped(function: Callable[[Tensor], Tensor], container: _Kind) -> _Kind:
    mapped: _Kind = pytree.tree_map(function, container)
    return mapped


def _collate(items: Sequence[Container], *, collate_fn_map: Any = None) -> Container:
    """What `torch.utils.data.default_collate` does with them."""
    return type(items[0]).cat(items)


#: What picks networks of a batch: a number, a slice, a mask or numbers.
Picks = SupportsIndex | slice | Tensor | np.ndarray | Sequence[int]


def picked_networks(wanted: Picks, networks: int) -> slice | Tensor | list[int]:
    """What picks networks from tensors "n …", and leaves their first axis where it is.

    Raises:
        IndexError: If there is no such network.
        ShapeError: If it is nothing that picks networks.
    """
    if isinstance(wanted, slice):
        return wanted
    if isinstance(wanted, np.ndarray):
        wanted = torch.from_numpy(wanted)
    if isinstance(wanted, Tensor) and wanted.dim():
        if wanted.dim() != 1 or wanted.is_floating_point():
            raise ShapeError(
                f"networks are picked by a mask or by numbers along one axis, got a tensor of "
                f"shape {tuple(wanted.shape)} and {wanted.dtype}"
            )
        return wanted
    if isinstance(wanted, SupportsIndex) and not isinstance(wanted, bool):
        number = whole_number(wanted)
        if not -networks <= number < networks:
            raise IndexError(f"network {number} of a batch of {networks}")
        start = number % networks
        return slice(start, start + 1)
    if isinstance(wanted, tuple) or not isinstance(wanted, Sequence):
        raise ShapeError(
            f"networks are picked by a number, a slice, a mask or a list of numbers, not "
            f"{wanted!r:.60}; channels and blocks by select(channels=…, blocks=…)"
        )
    return list(wanted)
