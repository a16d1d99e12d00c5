"""Tensors with labels, and the two operations on them that a layer with a rank needs."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

#: The label of the R products that a parameter is a sum of.
RANK = "ρ"


class Named(NamedTuple):
    """A tensor and a label for each of its dimensions: "n", "c", "e", "l", `RANK` and axes."""

    labels: tuple[str, ...]
    tensor: Tensor

    def times(self, other: "Named", out: tuple[str, ...]) -> "Named":
        """The product, summed over all labels that are not in `out`."""
        number = {a: i for i, a in enumerate(dict.fromkeys((*self.labels, *other.labels)))}
        tensor = torch.einsum(
            self.tensor,
            [number[a] for a in self.labels],
            other.tensor,
            [number[a] for a in other.labels],
            [number[a] for a in out],
        )
        return Named(out, tensor)

    def order(self, labels: tuple[str, ...]) -> "Named":
        """The same labels in another order, a view."""
        return Named(labels, self.tensor.permute([self.labels.index(a) for a in labels]))

    def expand(self, labels: tuple[str, ...], sizes: Mapping[str, int]) -> "Named":
        """With more labels, along which it is constant, a view."""
        missing = tuple(a for a in labels if a not in self.labels)
        tensor = self.tensor[(None,) * len(missing)]
        view = Named((*missing, *self.labels), tensor).order(labels)
        # -1 leaves a length alone; 1 stands for all where a constant is expanded to networks.
        lengths = [
            sizes[a] if a in sizes and n == 1 else -1
            for a, n in zip(labels, view.tensor.shape, strict=True)
        ]
        return Named(labels, view.tensor.expand(lengths))

    def rename(self, labels: Mapping[str, str]) -> "Named":
        """Other names for some labels."""
        return Named(tuple(labels.get(a, a) for a in self.labels), self.tensor)

    def narrow(self, start: int, length: int) -> "Named":
        """Some of the products, a view."""
        return Named(self.labels, self.tensor.narrow(self.labels.index(RANK), start, length))


class Matmul(Function):
    """Matrix products with ReLU, some rows at a time, while these are in the cache.

    The result is far larger than the operands. So in the backward pass, too, a masked gradient is
    made for some rows and used up before the next.
    """

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, relu: bool) -> Tensor:
        """Multiply "b p ρ" by "b ρ q"."""
        out = first.new_empty(first.shape[0], first.shape[1], second.shape[2])
        for some, rows in _pieces(out):
            part = out[some, rows]
            torch.matmul(first[some, rows], second[some], out=part)
            if relu:
                part.relu_()
        ctx.save_for_backward(first, second, *([out] if relu else []))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of both operands."""
        first, second, *masks = ctx.saved_tensors
        grad_first, grad_second = torch.empty_like(first), torch.zeros_like(second)
        for some, rows in _pieces(grad):
            g = grad[some, rows]
            if masks:
                g = torch.ops.aten.threshold_backward(g, masks[0][some, rows], 0)
            grad_first[some, rows] = torch.matmul(g, second[some].mT)
            grad_second[some] += torch.matmul(first[some, rows].mT, g)
        return grad_first, grad_second, None


#: Entries of a piece: 1 MB in float32, half of a usual cache.
PIECE = 2**18


def _pieces(matrices: Tensor) -> Iterator[tuple[slice | int, slice]]:
    """Cut "b p q" into several matrices at a time, or some rows of a large one."""
    number, height, width = matrices.shape
    many = max(1, PIECE // max(1, height * width))
    rows = height if many > 1 else max(1, PIECE // width)
    for i in range(0, number, many):
        for j in range(0, height, max(1, rows)):
            yield slice(i, i + many) if many > 1 else i, slice(j, j + rows)
