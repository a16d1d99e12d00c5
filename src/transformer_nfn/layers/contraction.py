"""All rows of a layer as few dense contractions, with a backward pass of the same kind.

The layer is linear in its sources (tensors and products), so its adjoint is a layer with the same
groups, sources and targets exchanged and every matrix transposed: gradients of the targets are
pooled, multiplied and added up into gradients of the sources by the code of the forward pass. The
gradient of a matrix is the product of the two pooled sides.

It is one autograd function because memory decides the speed: what a layer touches for a batch of
networks is far larger than a cache, so that every extra buffer costs as much as the arithmetic.
Additions and ReLU happen in the buffers of the matmuls, and autograd keeps nothing but the pooled
sources and the targets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from transformer_nfn.layers.assemble import Term, assemble
from transformer_nfn.layers.pooling import Labelled, Pools
from transformer_nfn.layers.rows import CONSTANT


@dataclass(frozen=True)
class Side:
    """A source or target of a group.

    Attributes:
        name: The tensor, the product or `CONSTANT`.
        free: Its free axes.
        shape: Its channels (1 for a constant) and the lengths of its free axes.
        start: For a source, the first of its rows in the matrices of the group.
        stop: For a source, where its rows end.
    """

    name: str
    free: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Group:
    """All rows with the same tied axes: for each target one matrix "l F T" from all sources.

    Every source that has the tied axes, pooled over its other symmetric axes, is a row into every
    target that has them, so the matrices are dense: F are the entries (c, free axes) of the
    sources side by side, T those (e, free axes) of the target.
    """

    tied: tuple[str, ...]
    tied_shape: tuple[int, ...]
    sources: tuple[Side, ...]
    targets: tuple[Side, ...]

    @cached_property
    def mixes_channels_only(self) -> bool:
        """Whether no free axis takes part, so that the matrix is from c to e channels."""
        return bool(self.tied) and not any(s.free for s in (*self.sources, *self.targets))

    def labels(self, side: Side) -> tuple[str, ...]:
        """The order of axes in an operand of the matmul.

        Pure channel mixing leaves channels where the weights have them, before the tied axes. Else
        all entries (c, free axes) stand last, as the rows of a matrix.
        """
        if self.mixes_channels_only:
            return ("l", "n", "c", *self.tied)
        return ("l", "n", *self.tied, "c", *side.free)

    def operand(self, pools: Pools, side: Side) -> Tensor:
        """One side as an operand: "l n c (tied)" for channel mixing, else "l (n tied) (c free)"."""
        ordered = pools.ordered(side.name, self.labels(side))
        if self.mixes_channels_only:
            return ordered.flatten(3)
        return ordered.flatten(2 + len(self.tied)).flatten(1, -2)

    def term(self, side: Side, tensor: Tensor, networks: int) -> Term:
        """The inverse of `operand`: a matmul's result as a term of its tensor."""
        channels, *free = side.shape
        if self.mixes_channels_only:
            shape = (tensor.shape[0], networks, channels, *self.tied_shape)
        else:
            shape = (tensor.shape[0], networks, *self.tied_shape, channels, *free)
        return Term(self.labels(side), tensor.reshape(shape))

    def features(self, pools: Pools) -> Tensor:
        """All sources side by side."""
        parts = [self.operand(pools, s) for s in self.sources if s.name != CONSTANT]
        if any(side.name == CONSTANT for side in self.sources):
            parts.append(parts[0].new_ones(*parts[0].shape[:-1], 1))
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, dim=2 if self.mixes_channels_only else -1)

    def forward(self, side: Side, features: Tensor, matrix: Tensor, networks: int) -> Term:
        """The term of one target."""
        blocks, (channels, *free) = matrix.shape[0], side.shape
        if self.mixes_channels_only:
            # Block by block: so neither operand needs to be copied.
            out = features.new_empty(blocks, networks, channels, features.shape[3])
            for block in range(blocks):
                shared = matrix[block].mT.expand(networks, -1, -1)
                torch.bmm(shared, features[block], out=out[block])
            return self.term(side, out, networks)
        if not (self.tied and side.free):
            return self.term(side, features @ matrix, networks)
        # Each output channel is written as a tensor of its own, "l c n tied free". That is as fast
        # as one wide matmul, and whoever reads single channels next (products of heads) finds them
        # contiguous.
        by_channel = matrix.view(blocks, matrix.shape[1], channels, -1).transpose(1, 2)
        out = features.new_empty(blocks, channels, features.shape[1], by_channel.shape[3])
        for block in range(blocks):
            shared = features[block].expand(channels, -1, -1)
            torch.bmm(shared, by_channel[block], out=out[block])
        shape = (blocks, channels, networks, *self.tied_shape, *free)
        return Term(("l", "c", "n", *self.tied, *side.free), out.view(shape))

    def grad_matrix(self, side: Side, features: Tensor, grads: Pools) -> Tensor:
        """The gradient of one target's matrix."""
        if self.mixes_channels_only:
            grad = self.operand(grads, side)
            by_block = [torch.bmm(f, g.mT).sum(0) for f, g in zip(features, grad, strict=True)]
            return torch.stack(by_block)
        if not (self.tied and side.free):
            return features.mT @ self.operand(grads, side)
        grad = grads.ordered(side.name, ("l", "c", "n", *self.tied, *side.free))
        blocks, channels = grad.shape[:2]
        grad = grad.reshape(blocks, channels, features.shape[1], -1)  # l c (n tied) free
        by_channel = features.new_empty(blocks, channels, features.shape[2], grad.shape[3])
        for block in range(blocks):
            shared = features[block].mT.expand(channels, -1, -1)
            torch.bmm(shared, grad[block], out=by_channel[block])
        return by_channel.transpose(1, 2).flatten(2)  # l F (c free)

    def grad_sources(
        self, matrices: Sequence[Tensor], grads: Pools, networks: int
    ) -> list[tuple[str, Term]]:
        """The terms of the gradients of all sources."""
        operands = [self.operand(grads, side) for side in self.targets]
        if self.tied and len(operands) > 1:
            # Small matrices, large operands that are copied anyway: one matmul.
            operands = [torch.cat(operands, dim=2)]
            matrices = [torch.cat(list(matrices), dim=2)]
        if self.mixes_channels_only:
            (matrix,), (grad,) = matrices, operands
            total = grad.new_empty(len(matrix), networks, matrix.shape[1], grad.shape[3])
            for block in range(len(matrix)):
                torch.bmm(matrix[block].expand(networks, -1, -1), grad[block], out=total[block])
        else:
            total = operands[0] @ matrices[0].mT
            for grad, matrix in zip(operands[1:], matrices[1:], strict=True):
                total.baddbmm_(grad, matrix.mT)
        return [
            (s.name, self.term(s, total.narrow(2, s.start, s.stop - s.start), networks))
            for s in self.sources
            if s.name != CONSTANT
        ]


@dataclass(frozen=True)
class Wiring:
    """What a contraction connects: its groups, and the axes of sources and targets by name."""

    groups: tuple[Group, ...]
    sources: Mapping[str, tuple[str, ...]]
    targets: Mapping[str, tuple[str, ...]]


class Contraction(Function):
    """Sources and matrices to targets; see the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, wiring: Wiring, relu: frozenset[str], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """The targets "n e l axes" in the order of the wiring, those in `relu` after ReLU.

        `tensors` are the sources "n c l axes" in the order of the wiring, then the matrices, group
        by group and target by target.
        """
        sources, matrices = tensors[: len(wiring.sources)], tensors[len(wiring.sources) :]
        networks = sources[0].shape[0]
        pools = Pools(_labelled(wiring.sources, sources))
        features = [group.features(pools) for group in wiring.groups]
        terms: dict[str, list[Term]] = {name: [] for name in wiring.targets}
        rest = iter(matrices)
        for group, rows in zip(wiring.groups, features, strict=True):
            for side in group.targets:
                terms[side.name].append(group.forward(side, rows, next(rest), networks))
        targets = {name: assemble(terms[name], axes) for name, axes in wiring.targets.items()}
        for name in relu:
            targets[name].relu_()
        ctx.set_materialize_grads(False)
        ctx.wiring, ctx.relu = wiring, relu
        ctx.shapes = [source.shape for source in sources], [t.shape for t in targets.values()]
        masks = [target for name, target in targets.items() if name in relu]
        ctx.save_for_backward(*matrices, *features, *masks)
        return tuple(targets.values())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The same contractions with sources and targets exchanged."""
        wiring: Wiring = ctx.wiring
        source_shapes, target_shapes = ctx.shapes
        count = sum(len(group.targets) for group in wiring.groups)
        matrices, features = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        masks = iter(features[len(wiring.groups) :])
        networks = source_shapes[0][0]
        given = []
        for name, shape, grad in zip(wiring.targets, target_shapes, grads, strict=True):
            mask = next(masks) if name in ctx.relu else None
            if grad is None:
                grad = matrices[0].new_zeros(()).expand(shape)  # takes no memory
            elif mask is not None:
                grad = torch.ops.aten.threshold_backward(grad, mask, 0)
            given.append(grad)
        pools = Pools(_labelled(wiring.targets, given))

        grad_matrices = [
            group.grad_matrix(side, rows, pools)
            for group, rows in zip(wiring.groups, features, strict=False)
            for side in group.targets
        ]
        grad_sources: list[Tensor | None] = [None] * len(wiring.sources)
        if any(ctx.needs_input_grad[2 : 2 + len(wiring.sources)]):
            terms: dict[str, list[Term]] = {name: [] for name in wiring.sources}
            start = 0
            for group in wiring.groups:
                own = matrices[start : start + len(group.targets)]
                start += len(group.targets)
                for name, term in group.grad_sources(own, pools, networks):
                    terms[name].append(term)
            grad_sources = [
                assemble(terms[name], axes).expand(shape)
                for (name, axes), shape in zip(wiring.sources.items(), source_shapes, strict=True)
            ]
        return (None, None, *grad_sources, *grad_matrices)


def _labelled(
    axes: Mapping[str, tuple[str, ...]], tensors: Sequence[Tensor]
) -> dict[str, Labelled]:
    return {
        name: (labels, tensor) for (name, labels), tensor in zip(axes.items(), tensors, strict=True)
    }
