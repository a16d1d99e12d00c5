"""Products of heads without copies: each channel of each network is one small matmul."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from transformer_nfn.space import WeightBatch


def head_product(batch: WeightBatch, name: str, keep: Sequence[str]) -> Tensor:
    """A declared product with the axes "n c l" and `keep`, as `WeightBatch.product`.

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
        shared = [label for label in first_labels if label in second_labels]
        contracted = [label for label in shared if label not in out_labels]
        # The larger factor says in which order the batch is stored; then it need not be copied.
        larger, its_labels = max(
            (first, first_labels), (second, second_labels), key=lambda item: item[0].numel()
        )
        stride = dict(zip(its_labels, larger.stride(), strict=True))
        batch = sorted((a for a in shared if a in out_labels), key=lambda a: -stride[a])
        only_first = [label for label in first_labels if label not in shared]
        only_second = [label for label in second_labels if label not in shared]
        ctx.orders = (
            (batch, contracted, only_first),
            (batch, contracted, only_second),
            (batch, only_first, only_second),
        )
        ctx.sizes, ctx.labels = sizes, (first_labels, second_labels, out_labels)
        a = _to_matrices(first, first_labels, ctx.orders[0])
        b = _to_matrices(second, second_labels, ctx.orders[1])
        ctx.save_for_backward(a, b)
        return _from_matrices(a.mT @ b, ctx.orders[2], sizes, out_labels)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients in the storage order of the factors."""
        a, b = ctx.saved_tensors
        g = _to_matrices(grad, ctx.labels[2], ctx.orders[2])
        grads = (
            b @ g.mT if ctx.needs_input_grad[0] else None,
            a @ g if ctx.needs_input_grad[1] else None,
        )
        return (
            *(
                None if part is None else _from_matrices(part, order, ctx.sizes, labels)
                for part, order, labels in zip(grads, ctx.orders, ctx.labels, strict=False)
            ),
            None,
            None,
            None,
        )


_Order = tuple[list[str], list[str], list[str]]


def _to_matrices(tensor: Tensor, labels: tuple[str, ...], order: _Order) -> Tensor:
    """Permute to the order and make each of its three parts one dimension."""
    flat = [label for part in order for label in part]
    shape = dict(zip(labels, tensor.shape, strict=True))
    counts = [torch.Size(shape[label] for label in part).numel() for part in order]
    return tensor.permute([labels.index(label) for label in flat]).reshape(counts)


def _from_matrices(
    matrices: Tensor, order: _Order, sizes: dict[str, int], labels: tuple[str, ...]
) -> Tensor:
    """The inverse of `_to_matrices`, a view."""
    flat = [label for part in order for label in part]
    view = matrices.view([sizes[label] for label in flat])
    return view.permute([flat.index(label) for label in labels])
