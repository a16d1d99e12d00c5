"""`Lockstep` in one call of compiled code: the same results up to rounding."""

import ctypes
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from transformer_nfn.space import ShapeError, sine_positions
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.training.compiled.library import load_library
from transformer_nfn.zoo.training.masks import Masks

#: The largest nets that the kernel takes: offsets in its buffers have 32 bits.
MOST_TOKENS, MOST_WIDTH, MOST_INPUTS = 1024, 1024, 2**16


class _Sizes(ctypes.Structure):
    """The struct of this name in kernel.cpp."""

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


def find_library(
    shape: NetShape, device: torch.device | str, dtype: torch.dtype
) -> ctypes.CDLL | None:
    """What can run nets of this shape, device and dtype; None if nothing can."""
    if torch.device(device).type != "cpu":
        return None
    library = load_library(dtype)
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
        _check("weights", weights, (len(weights), shape.size), weights.dtype)
        assert weights.is_contiguous()
        self.shape, self.weights, self._library = shape, weights, library
        self._positions = sine_positions(shape.tokens, shape.D).to(weights).contiguous()
        self._gradient: Tensor | None = None

    def logits(
        self, inputs: Float[Tensor, "b t p"], lengths: Int64[Tensor, " b"] | None
    ) -> Float[Tensor, "n b classes"]:
        """Answers of all nets to the same sequences."""
        self._check_inputs(inputs, lengths, (len(inputs),))
        out = self.weights.new_empty(len(self.weights), len(inputs), self.shape.classes)
        read = (self.weights, self._positions, inputs, lengths)
        self._call(self._library.forward, len(inputs), (*read, out))
        return out

    def pull(
        self, inputs: Float[Tensor, "b t p"], gradient: Float[Tensor, "n b classes"]
    ) -> Float[Tensor, "b t p"]:
        """The gradient of sequences that all nets were asked, from that of what they answered."""
        self._check_inputs(inputs, None, (len(inputs),))
        answers = (len(self.weights), len(inputs), self.shape.classes)
        _check("gradients of answers", gradient, answers, self._dtype)
        out = torch.empty_like(inputs, memory_format=torch.contiguous_format)
        read = (self.weights, self._positions, inputs, gradient)
        self._call(self._library.pull, len(inputs), (*read, out))
        return out

    def step(
        self,
        inputs: Float[Tensor, "n b t p"],
        labels: Int64[Tensor, "n b"],
        lengths: Int64[Tensor, "n b"] | None,
        masks: Masks | None,
    ) -> Outcome:
        """Forward and backward of each net on its own batch."""
        n, b = len(self.weights), labels.shape[-1]
        self._check_inputs(inputs, lengths, (n, b))
        _check("labels", labels, (n, b), torch.int64)
        _check_range("label", labels, 0, self.shape.classes - 1)
        drop: tuple[Tensor | None, Tensor | None] = (None, None)
        if masks is not None:
            rows, layers = b * self.shape.tokens, 2 * self.shape.blocks
            _check("masks", masks.choice, (n, layers, rows), torch.int64)
            _check("pool of masks", masks.pool, (*masks.pool.shape[:1], self.shape.D), self._dtype)
            drop = (masks.pool, masks.choice)
        if self._gradient is None:
            self._gradient = torch.empty_like(self.weights)
        losses, rights = torch.empty(n, dtype=torch.float64), torch.empty(n, dtype=torch.int64)
        found = Outcome(self._gradient, losses, rights)
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
        if function(ctypes.byref(sizes), *places):
            raise MemoryError("not enough memory for a pass of these nets")

    @property
    def _dtype(self) -> torch.dtype:
        return self.weights.dtype

    def _check_inputs(
        self, inputs: Tensor, lengths: Tensor | None, leading: tuple[int, ...]
    ) -> None:
        s = self.shape
        _check("inputs", inputs, (*leading, s.tokens, s.inputs or s.D), self._dtype)
        if lengths is not None:
            _check("lengths", lengths, leading, torch.int64)
            _check_range("length", lengths, 1, s.tokens)


# Compiled code trusts what it is told of the memory that tensors point to.


def _check(what: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device.type != "cpu":
        raise ShapeError(
            f"{what} are {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}, these nets "
            f"need {shape} of {dtype} on the CPU"
        )


def _check_range(what: str, values: Tensor, least: int, most: int) -> None:
    if len(values) and not least <= values.min() <= values.max() <= most:
        raise ShapeError(f"a {what} is not one of {least} to {most}")
