"""Products of heads without copies: each channel of each network is one small matmul."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from transformer_nfn.layers.pooling import permutation
from transformer_nfn.space import WeightBatch


def head_product(batch: WeightBatch, name: str, keep: Sequence[str]) -> Tensor:
    """A declared product as `WeightBatch.product` gives it, summed over all axes but `keep`.

    What only one factor has is summed before multiplying, so that the full product never exists.
    Heads and their coordinates are contracted together, so that no tensor "h x y" exists, and the
    operands and their gradients stay in the order of axes in which the layers write them.
    """
    product = batch.spec.block.products[name]
    factors, labels = [], []
    for factor, other in (product.factors, product.factors[::-1]):
        own = [index.label for index in factor.indices]
        shared = {index.label for index in other.indices}
        alone = [3 + i for i, label in enumerate(own) if label not in shared and label not in keep]
        tensor = batch[factor.tensor]
        factors.append(tensor.sum(alone) if alone else tensor)
        labels.append(
            ("n", "c", "l", *(label for i, label in enumerate(own) if 3 + i not in alone))
        )
    out: Tensor = _Product.apply(*factors, *labels, ("n", "c", "l", *keep))  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class _Orders:
    """The labels of both factors and of the result, each as three parts that become dimensions."""

    batch: tuple[str, ...]
    contracted: tuple[str, ...]
    first: tuple[str, ...]
    second: tuple[str, ...]

    @staticmethod
    @cache
    def of(
        first: tuple[str, ...],
        second: tuple[str, ...],
        out: tuple[str, ...],
        batch: tuple[str, ...],
    ) -> "_Orders":
        shared = [label for label in first if label in second]
        return _Orders(
            batch,
            tuple(label for label in shared if label not in out),
            tuple(label for label in first if label not in shared),
            tuple(label for label in second if label not in shared),
        )


class _Product(Function):
    """Contract what two labelled tensors share and the result does not have."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        first_labels: tuple[str, ...],
        second_labels: tuple[str, ...],
        out_labels: tuple[str, ...],
    ) -> Tensor:
        """As one batched matmul "B C X", "B C Y" -> "B X Y"."""
        sizes = dict(zip(first_labels, first.shape, strict=True))
        sizes |= dict(zip(second_labels, second.shape, strict=True))
        # The larger factor says in which order the batch is stored; then it need not be copied.
        larger, labels = max(
            (first, first_labels), (second, second_labels), key=lambda item: item[0].numel()
        )
        stride = dict(zip(labels, larger.stride(), strict=True))
        shared = [a for a in first_labels if a in second_labels and a in out_labels]
        batch = tuple(sorted(shared, key=lambda a: -stride[a]))
        o = _Orders.of(first_labels, second_labels, out_labels, batch)
        ctx.orders = (
            (o.batch, o.contracted, o.first),
            (o.batch, o.contracted, o.second),
            (o.batch, o.first, o.second),
        )
        ctx.sizes, ctx.labels = sizes, (first_labels, second_labels, out_labels)
        a = _to_matrices(first, first_labels, ctx.orders[0], sizes)
        b = _to_matrices(second, second_labels, ctx.orders[1], sizes)
        ctx.save_for_backward(a, b)
        return _from_matrices(torch.bmm(a.mT, b), ctx.orders[2], sizes, out_labels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the storage order of the factors."""
        a, b = ctx.saved_tensors
        g = _to_matrices(grad, ctx.labels[2], ctx.orders[2], ctx.sizes)
        grad_first = grad_second = None
        if ctx.needs_input_grad[0]:
            grad_first = _from_matrices(torch.bmm(b, g.mT), ctx.orders[0], ctx.sizes, ctx.labels[0])
        if ctx.needs_input_grad[1]:
            grad_second = _from_matrices(torch.bmm(a, g), ctx.orders[1], ctx.sizes, ctx.labels[1])
        return grad_first, grad_second, None, None, None


_Order = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def _to_matrices(
    tensor: Tensor, labels: tuple[str, ...], order: _Order, sizes: dict[str, int]
) -> Tensor:
    """Permute to the order and make each of its three parts one dimension."""
    flat = (*order[0], *order[1], *order[2])
    counts = [prod(sizes[label] for label in part) for part in order]
    return tensor.permute(permutation(labels, flat)).reshape(counts)


def _from_matrices(
    matrices: Tensor, order: _Order, sizes: dict[str, int], labels: tuple[str, ...]
) -> Tensor:
    """The inverse of `_to_matrices`, a view."""
    flat = (*order[0], *order[1], *order[2])
    view = matrices.view([sizes[label] for label in flat])
    return view.permute(permutation(flat, labels))
