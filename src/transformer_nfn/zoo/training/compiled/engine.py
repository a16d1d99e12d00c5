"""`Lockstep` in one call of compiled code: the same results up to rounding."""

import ctypes
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from transformer_nfn.space import sine_positions
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.training.compiled.library import load_library
from transformer_nfn.zoo.training.masks import Masks

#: Of nets that are compiled: places in their buffers are counted in 32 bits.
MOST_TOKENS, MOST_WIDTH, MOST_INPUTS = 1024, 1024, 2**16


class _Sizes(ctypes.Structure):
    """`Sizes` of kernel.cpp."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            *("nets", "sequences", "tokens", "inputs", "D", "heads", "width", "D_A", "hidden"),
            *("classes", "blocks", "skip", "rectified", "biased", "weights"),
        )
    )


class Outcome(NamedTuple):
    """Of one pass, for each net."""

    gradient: Float[Tensor, "n weights"]  # of the mean loss; an optimizer may write over it
    loss: Float64[Tensor, " n"]  # summed over the batch
    right: Int64[Tensor, " n"]  # how many answers


def find_library(shape: NetShape, weights: Float[Tensor, "n weights"]) -> ctypes.CDLL | None:
    """What can run nets of this shape where their weights are; None if nothing can."""
    if weights.device.type != "cpu":
        return None
    library = load_library(weights.dtype)
    if library is None:
        return None
    # Only such widths fill whole registers.
    widths = (shape.D, shape.head_width, shape.D_A, shape.hidden)
    fits = (
        not any(width % library.lanes() for width in widths)
        and max(*widths, shape.classes) <= MOST_WIDTH
        and shape.tokens <= MOST_TOKENS
        and shape.inputs <= MOST_INPUTS
    )
    return library if fits else None


class Compiled:
    """n nets of one shape, in one call of compiled code.

    Args:
        shape: Their sizes.
        weights: One flat row for each net, as `NetShape.trained` lays it out, read in each pass.
        library: What `find_library` gives.
    """

    def __init__(
        self, shape: NetShape, weights: Float[Tensor, "n weights"], library: ctypes.CDLL
    ) -> None:
        assert weights.is_contiguous()
        self.shape, self.weights, self._library = shape, weights, library
        self._positions = sine_positions(shape.tokens, shape.D).to(weights).contiguous()
        self._gradient = torch.empty_like(weights)

    def logits(
        self, inputs: Float[Tensor, "b t p"], lengths: Int64[Tensor, " b"] | None
    ) -> Float[Tensor, "n b classes"]:
        """Answers of all nets to the same sequences."""
        _check("length", lengths, 1, self.shape.tokens)
        out = self.weights.new_empty(len(self.weights), len(inputs), self.shape.classes)
        read = (self.weights, self._positions, inputs, lengths)
        self._call(self._library.forward, len(inputs), (*read, out))
        return out

    def step(
        self,
        inputs: Float[Tensor, "n b t p"],
        labels: Int64[Tensor, "n b"],
        lengths: Int64[Tensor, "n b"] | None,
        masks: Masks | None,
    ) -> Outcome:
        """Forward and backward of each net on its own batch."""
        _check("label", labels, 0, self.shape.classes - 1)
        _check("length", lengths, 1, self.shape.tokens)
        n, b = labels.shape
        losses, rights = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.int64)
        found = Outcome(self._gradient, losses, rights)
        drop = (None, None) if masks is None else (masks.pool, masks.choice)
        read = (self.weights, self._positions, inputs, lengths, labels, *drop)
        self._call(self._library.step, b, (*read, *found))
        return found

    def _call(
        self, function: Callable[..., int], sequences: int, tensors: Iterable[Tensor | None]
    ) -> None:
        whole = [None if one is None else one.contiguous() for one in tensors]  # kept for the call
        s, (nets, weights) = self.shape, self.weights.shape
        widths = (s.tokens, s.inputs, s.D, s.heads, s.head_width, s.D_A, s.hidden, s.classes)
        kinds = (s.skip, s.rectified, s.biased)
        sizes = _Sizes(nets, sequences, *widths, s.blocks, *kinds, weights)
        places = [ctypes.c_void_p(None if one is None else one.data_ptr()) for one in whole]
        function(ctypes.byref(sizes), *places)


def _check(what: str, values: Int64[Tensor, "*any"] | None, least: int, most: int) -> None:
    """Compiled code reads the memory that these point to."""
    if values is not None and not least <= values.min() <= values.max() <= most:
        raise ValueError(f"a {what} is not one of {least} to {most}")
