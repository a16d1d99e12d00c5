"""Add up the terms of one target, and apply ReLU, in one buffer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Term:
    """What one group contributes to one target: a matmul's result and how to read it.

    Attributes:
        tied: The axes along which it varies; the target is the same along its other ones.
        raw: The result as the matmul left it.
        dims: What `raw` is when it is viewed as `shape`: l, n, e and labels, in any order.
        shape: See `dims`.
        axes: Labels of the target.
    """

    tied: tuple[str, ...]
    raw: Tensor
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    def logical(self, raw: Tensor) -> Tensor:
        """`raw`, or a gradient of its shape, as a view "n e l axes", 1 where it does not vary."""
        order = [
            self.dims.index(label) for label in ("n", "e", "l", *self.axes) if label in self.dims
        ]
        view = raw.reshape(self.shape).permute(order)
        for position, label in enumerate(self.axes):
            if label not in self.dims:
                view = view.unsqueeze(3 + position)
        return view


def assemble(terms: Sequence[Term], relu: bool) -> Tensor:
    """The sum of all terms of one target, "n e l axes", after ReLU if asked for.

    Terms that vary along few axes are added to each other first, so that the full-size buffer,
    the matmul of the finest term, is touched as little as possible.
    """
    *coarse, finest = sorted(terms, key=lambda term: len(term.tied))
    small: list[tuple[set[str], Tensor]] = []
    for term in reversed(coarse):
        home = next((i for i, (tied, _) in enumerate(small) if set(term.tied) < tied), None)
        view = term.logical(term.raw)
        if home is None:
            small.append((set(term.tied), view))
        else:
            tied, other = small[home]
            small[home] = (tied, other + view)
    if small:
        views = [tensor for _, tensor in small]
        raw = _AddInPlace.apply(finest.raw, finest, relu, *views)  # type: ignore[no-untyped-call]
        return finest.logical(raw)
    view = finest.logical(finest.raw)
    return view.relu() if relu else view


class _AddInPlace(Function):
    """Adds broadcast terms to a matmul's result and applies ReLU, without another buffer.

    Autograd's own in-place addition to a view would clone the whole gradient in its backward
    pass; at thousands of networks a fresh buffer costs more than the arithmetic.
    """

    @staticmethod
    def forward(ctx: Any, raw: Tensor, term: Term, relu: bool, *small: Tensor) -> Tensor:
        view = term.logical(raw)
        for tensor in small:
            view.add_(tensor)
        if relu:
            view.relu_()
            ctx.save_for_backward(raw)
        ctx.mark_dirty(raw)
        ctx.term, ctx.shapes = term, [tensor.shape for tensor in small]
        return raw

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.saved_tensors:
            grad = torch.ops.aten.threshold_backward(grad, ctx.saved_tensors[0], 0)
        view = ctx.term.logical(grad)
        return grad, None, None, *(view.sum_to_size(shape) for shape in ctx.shapes)
