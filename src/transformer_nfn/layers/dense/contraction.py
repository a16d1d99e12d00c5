"""All rows of a layer as few dense contractions, with a backward pass of the same kind.

The layer is linear in its sources (tensors and products), so its adjoint is a layer with the same
groups, sources and targets exchanged and every matrix transposed: gradients of the targets are
pooled, multiplied and added up into gradients of the sources by the code of the forward pass. The
gradient of a matrix is the product of the two pooled sides.

It is one autograd function because memory decides the speed: what a layer touches for a batch of
networks is far larger than a cache, and a fresh buffer can cost more than the arithmetic on it. So
it goes target by target, while the target is still in the cache: additions and ReLU happen in the
buffer of the matmul, and backward a masked gradient is used up before the next one is made.
Autograd keeps nothing but the pooled sources and the targets.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from transformer_nfn.layers.dense.assemble import Term, assemble
from transformer_nfn.layers.pooling import Pools
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

    Attributes:
        tied: The tied axes.
        tied_shape: Their lengths.
        sources: What it reads.
        targets: What it writes.
        channels_apart: Write each channel of a target as a contiguous tensor of its own. For
            targets that products are made of, channel by channel: then these need no copies.
    """

    tied: tuple[str, ...]
    tied_shape: tuple[int, ...]
    sources: tuple[Side, ...]
    targets: tuple[Side, ...]
    channels_apart: bool

    @cached_property
    def mixes_channels_only(self) -> bool:
        """Whether no free axis takes part, so that the matrix is from c to e channels."""
        return bool(self.tied) and not any(s.free for s in (*self.sources, *self.targets))

    @cached_property
    def labels(self) -> dict[Side, tuple[str, ...]]:
        """For each side, the order of axes in an operand of the matmul.

        Pure channel mixing leaves channels where the weights have them, before the tied axes. Else
        all entries (c, free axes) stand last, as the rows of a matrix.
        """
        if self.mixes_channels_only:
            return dict.fromkeys((*self.sources, *self.targets), ("l", "n", "c", *self.tied))
        return {s: ("l", "n", *self.tied, "c", *s.free) for s in (*self.sources, *self.targets)}

    def operand(self, pools: Pools, side: Side) -> Tensor:
        """One side as an operand: "l n c (tied)" for channel mixing, else "l (n tied) (c free)"."""
        ordered = pools.ordered(side.name, self.labels[side])
        if self.mixes_channels_only:
            return ordered.flatten(3)
        blocks, networks = ordered.shape[:2]
        return ordered.reshape(blocks, networks * prod(self.tied_shape), prod(side.shape))

    def term(self, side: Side, tensor: Tensor, networks: int) -> Term:
        """The inverse of `operand`: a matmul's result as a term of its tensor."""
        channels, *free = side.shape
        if self.mixes_channels_only:
            shape = (tensor.shape[0], networks, channels, *self.tied_shape)
        else:
            shape = (tensor.shape[0], networks, *self.tied_shape, channels, *free)
        return Term(self.labels[side], tensor.reshape(shape))

    def features(self, pools: Pools) -> Tensor:
        """All sources side by side, each copied at most once."""
        if len(self.sources) == 1:
            return self.operand(pools, self.sources[0])
        real = [side for side in self.sources if side.name != CONSTANT]
        parts = [pools.ordered(side.name, self.labels[side]) for side in real]
        if self.mixes_channels_only:
            return torch.cat(parts, dim=2).flatten(3)
        blocks, networks = parts[0].shape[:2]
        rows = networks * prod(self.tied_shape)
        out = parts[0].new_empty(blocks, rows, self.sources[-1].stop)
        for side, part in zip(real, parts, strict=True):
            place = out[:, :, side.start : side.stop]
            place.view(blocks, networks, *self.tied_shape, *side.shape).copy_(part)
        for side in self.sources:
            if side.name == CONSTANT:
                out[:, :, side.start : side.stop].fill_(1)
        return out

    def forward(self, side: Side, features: Tensor, matrix: Tensor, networks: int) -> Term:
        """The term of one target."""
        blocks, (channels, *free) = matrix.shape[0], side.shape
        if self.mixes_channels_only:
            # Block by block: so neither operand needs to be copied.
            out = features.new_empty(blocks, networks, channels, features.shape[3])
            for m, f, o in zip(matrix.mT, features, out, strict=True):
                torch.bmm(m.expand(networks, -1, -1), f, out=o)
            return self.term(side, out, networks)
        if not self.channels_apart:
            return self.term(side, torch.bmm(features, matrix), networks)
        by_channel = matrix.view(blocks, -1, channels, prod(free)).transpose(1, 2)  # l c F free
        out = features.new_empty(blocks, channels, features.shape[1], by_channel.shape[3])
        for f, m, o in zip(features, by_channel, out, strict=True):
            torch.bmm(f.expand(channels, -1, -1), m, out=o)
        shape = (blocks, channels, networks, *self.tied_shape, *free)
        return Term(("l", "c", "n", *self.tied, *side.free), out.view(shape))

    def grad_matrix(self, side: Side, features: Tensor, grads: Pools) -> Tensor:
        """The gradient of one target's matrix."""
        if self.mixes_channels_only:
            grad = self.operand(grads, side)
            by_block = [torch.bmm(f, g.mT).sum(0) for f, g in zip(features, grad, strict=True)]
            return torch.stack(by_block)
        if not self.channels_apart:
            return torch.bmm(features.mT, self.operand(grads, side))
        grad = grads.ordered(side.name, ("l", "c", "n", *self.tied, *side.free))
        blocks, channels = grad.shape[:2]
        grad = grad.reshape(blocks, channels, features.shape[1], prod(side.shape[1:]))
        by_channel = features.new_empty(blocks, channels, features.shape[2], grad.shape[3])
        for f, g, o in zip(features.mT, grad, by_channel, strict=True):
            torch.bmm(f.expand(channels, -1, -1), g, out=o)
        return by_channel.transpose(1, 2).flatten(2)  # l F (c free)

    def grad_features(
        self, side: Side, matrix: Tensor, grads: Pools, so_far: Tensor | None
    ) -> Tensor:
        """The gradient of `features` that comes from one target, added to that of others."""
        grad = self.operand(grads, side)
        if not self.mixes_channels_only:
            if so_far is None:
                return torch.bmm(grad, matrix.mT)
            return so_far.baddbmm_(grad, matrix.mT)
        blocks, networks = grad.shape[:2]
        shape = (blocks, networks, matrix.shape[1], grad.shape[3])
        total = grad.new_zeros(shape) if so_far is None else so_far
        for m, g, o in zip(matrix, grad, total, strict=True):
            o.baddbmm_(m.expand(networks, -1, -1), g)
        return total

    def grad_terms(self, grad_features: Tensor, networks: int) -> list[tuple[str, Term]]:
        """The gradient of `features` as terms of the sources' gradients."""
        return [
            (s.name, self.term(s, grad_features.narrow(2, s.start, s.stop - s.start), networks))
            for s in self.sources
            if s.name != CONSTANT
        ]


@dataclass(frozen=True)
class Wiring:
    """What a contraction connects.

    Attributes:
        groups: The groups.
        sources: Axes of the sources by name.
        targets: Axes of the targets by name.
        matrices: For each matrix the number of its group and its target; all of one target stand
            together, the one with the most tied axes last.
    """

    groups: tuple[Group, ...]
    sources: Mapping[str, tuple[str, ...]]
    targets: Mapping[str, tuple[str, ...]]
    matrices: tuple[tuple[int, Side], ...]


class Contraction(Function):
    """Sources and matrices to targets; see the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, wiring: Wiring, relu: frozenset[str], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """The targets "n e l axes" in the order of the wiring, those in `relu` after ReLU.

        `tensors` are the sources "n c l axes" in the order of the wiring, then its matrices.
        """
        sources, matrices = tensors[: len(wiring.sources)], tensors[len(wiring.sources) :]
        networks = sources[0].shape[0]
        pools = Pools(
            {
                name: (axes, source)
                for (name, axes), source in zip(wiring.sources.items(), sources, strict=True)
            }
        )
        features = [group.features(pools) for group in wiring.groups]
        targets = []
        for name, axes in wiring.targets.items():
            terms = [
                wiring.groups[number].forward(side, features[number], matrix, networks)
                for (number, side), matrix in zip(wiring.matrices, matrices, strict=True)
                if side.name == name
            ]
            target = assemble(terms, axes)
            targets.append(target.relu_() if name in relu else target)
        ctx.set_materialize_grads(False)
        ctx.wiring, ctx.relu = wiring, relu
        ctx.source_shapes = [source.shape for source in sources]
        masks = [t for name, t in zip(wiring.targets, targets, strict=True) if name in relu]
        ctx.save_for_backward(*matrices, *features, *masks)
        return tuple(targets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """The same contractions with sources and targets exchanged."""
        wiring: Wiring = ctx.wiring
        saved = iter(ctx.saved_tensors)
        matrices = [next(saved) for _ in wiring.matrices]
        features = [next(saved) for _ in wiring.groups]
        wanted = any(ctx.needs_input_grad[2 : 2 + len(wiring.sources)])
        grad_matrices: list[Tensor | None] = [None] * len(matrices)
        grad_features: list[Tensor | None] = [None] * len(features)
        for (name, axes), grad in zip(wiring.targets.items(), grads, strict=True):
            mask = next(saved) if name in ctx.relu else None
            if grad is None:
                continue
            if mask is not None:
                grad = torch.ops.aten.threshold_backward(grad, mask, 0)
            pools = Pools({name: (axes, grad)})
            for i, (number, side) in enumerate(wiring.matrices):
                if side.name == name:
                    group = wiring.groups[number]
                    grad_matrices[i] = group.grad_matrix(side, features[number], pools)
                    if wanted:
                        grad_features[number] = group.grad_features(
                            side, matrices[i], pools, grad_features[number]
                        )
            del grad, pools  # its memory serves the next one
        networks = ctx.source_shapes[0][0]
        terms: dict[str, list[Term]] = {name: [] for name in wiring.sources}
        for group, total in zip(wiring.groups, grad_features, strict=True):
            if total is not None:
                for name, term in group.grad_terms(total, networks):
                    terms[name].append(term)
        grad_sources = [
            assemble(terms[name], axes).expand(shape) if terms[name] else None
            for (name, axes), shape in zip(wiring.sources.items(), ctx.source_shapes, strict=True)
        ]
        return (None, None, *grad_sources, *grad_matrices)
