"""A network in the arithmetic of a loader: every result is stored in the dtype of the file.

Two files may have the same function in float64 and not for whoever loads them: a norm's scale times
2¹²⁷, with its readers divided by it, overflows in between; values that are scaled down to nothing
are lost; a bias of all keys that softmax does not see takes the digits of what it does see.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.checkpoints import Checkpoint, OtherNumbers, TensorFiles
from transformer_nfn.identity.comparing.rounding import with_files
from transformer_nfn.identity.running.function import OutputChoice, run_batches
from transformer_nfn.identity.running.inputs import NetInputs


def run_in(
    dtype: torch.dtype,
    checkpoint: Checkpoint,
    batches: Sequence[NetInputs],
    choice: OutputChoice | None = None,
) -> list[dict[str, Tensor]]:
    """What a network gives where all that comes of its weights is rounded at every step."""
    if dtype not in _KINDS:
        return run_batches(checkpoint, batches, as_stored=True, choice=choice)
    rounded = with_files(checkpoint, _Rounded(checkpoint.files, _KINDS[dtype]))
    found = run_batches(rounded, batches, as_stored=True, choice=choice)
    with torch._C.DisableTorchFunctionSubclass():
        return [{head: out.as_subclass(Tensor) for head, out in given.items()} for given in found]


#: What says something of a tensor, which is most of what is asked of one, and what gives the same
#: numbers in another shape: there is nothing to round.
_ABOUT = frozenset(
    {
        *(Tensor.shape.__get__, Tensor.dtype.__get__, Tensor.device.__get__),  # type: ignore[attr-defined]
        *(Tensor.dim, Tensor.is_floating_point, Tensor.__len__),
    }
)
_SAME_NUMBERS = frozenset(
    {
        *(Tensor.__getitem__, Tensor.flatten, Tensor.reshape, Tensor.permute, Tensor.transpose),
        *(Tensor.unsqueeze, Tensor.split, torch.split, Tensor.chunk, Tensor.unbind),
    }
)


class _Stored(Tensor):
    """Numbers, and all that is computed with them, as the dtype of a file can hold them.

    They are kept in float64. What does not come of the weights, as the angles of positions, is
    exact: a loader computes it with more digits.
    """

    kind: ClassVar[torch.dtype]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **(kwargs or {}))
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        found = super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]
        return found if func in _SAME_NUMBERS else cls._rounded(found)

    @classmethod
    def _rounded(cls, found: Any) -> Any:
        if isinstance(found, tuple | list):
            return type(found)([cls._rounded(each) for each in found])
        if not isinstance(found, Tensor) or not found.dtype.is_floating_point:
            return found
        with torch._C.DisableTorchFunctionSubclass():
            return found.to(cls.kind).double().as_subclass(cls)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """In steps: the scores are at least float32 in every loader, and no more."""
    with torch._C.DisableTorchFunctionSubclass():
        scores = (q @ k.mT).float().double() * (q.shape[-1] ** -0.5 if scale is None else scale)
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        shares = scores.float().double().softmax(dim=-1)
    return shares.as_subclass(type(v)) @ v


def _kind(dtype: torch.dtype) -> type[_Stored]:
    return type(f"_Stored_{dtype}", (_Stored,), {"kind": dtype})


#: Not float64, in which all else is computed.
_KINDS = {kind: _kind(kind) for kind in (torch.float16, torch.bfloat16, torch.float32)}


class _Rounded(OtherNumbers):
    """Tensors as stored, which round what is computed with them."""

    def __init__(self, files: TensorFiles, kind: type[_Stored]) -> None:
        super().__init__(files)
        self._kind = kind

    def read(self, name: str) -> Tensor:
        return self._of(super().read(name))

    def slice(self, name: str, first: int, last: int) -> Tensor:  # and rows and chunks by it
        return self._of(super().slice(name, first, last))

    def _of(self, tensor: Tensor) -> Tensor:
        if not tensor.dtype.is_floating_point:
            return tensor
        return tensor.to(self._kind.kind).double().as_subclass(self._kind)
