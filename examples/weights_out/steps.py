"""Steps that take the weights of a net and a gradient, and give weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.layers import EquivariantLayer
from transformer_nfn.space import BlockSpec, NetBatch, WeightBatch, apply_net


def with_blocks(nets: NetBatch, blocks: WeightBatch) -> NetBatch:
    """The same nets with other weights in their blocks."""
    return NetBatch(blocks, nets.embedding, nets.classifier)


def losses(nets: NetBatch, inputs: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each net; images are each net's own, or the same for all."""
    logits = apply_net(nets, inputs)  # n s o
    wanted = labels.expand(logits.shape[:2])
    each = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
    return each.view(wanted.shape).mean(1)


def plain_gradient(nets: NetBatch, inputs: Tensor, labels: Tensor) -> WeightBatch:
    """The gradient of each net's loss by its blocks' weights, every tensor of length 1."""
    gradient = _gradient(nets, inputs, labels)
    return _over_length(gradient, gradient)


def raised_gradient(nets: NetBatch, inputs: Tensor, labels: Tensor) -> WeightBatch:
    """The gradient as weights: something that the group moves as it moves the weights.

    A gradient is a covector. Where the group turns Q into Q Mᵀ, it turns the gradient G of Q into
    G M⁻¹, so U - lr G is not equivariant, and a layer that is fed with G isn't either. But
    QᵀQ becomes M QᵀQ Mᵀ, so that G QᵀQ becomes (G QᵀQ) Mᵀ, as Q does; and it still points uphill,
    since <G, G QᵀQ> = |G Qᵀ|². Its root, which no group element changes, becomes the length.
    """
    U, gradient = nets.blocks, _gradient(nets, inputs, labels)
    raised = {name: gradient[name] @ (U[name].mT @ U[name]) for name in ("Q", "K", "V")}
    raised["O"] = (U["O"] @ U["O"].mT) @ gradient["O"]  # its linear axis comes first
    return _over_length(gradient.replace(raised), gradient)  # permuted axes: as they are


def _gradient(nets: NetBatch, inputs: Tensor, labels: Tensor) -> WeightBatch:
    leaves = {name: W.detach().requires_grad_() for name, W in nets.blocks.tensors.items()}
    with torch.enable_grad():
        loss = losses(with_blocks(nets, nets.blocks.replace(leaves)), inputs, labels).sum()
        found = torch.autograd.grad(loss, list(leaves.values()))
    return nets.blocks.replace(dict(zip(leaves, found, strict=True)))


def _over_length(vector: WeightBatch, covector: WeightBatch) -> WeightBatch:
    """Divide by √<vector, covector>, one number for each net, block and tensor."""
    out = {}
    for name in vector.tensors:
        length = (vector[name] * covector[name]).flatten(3).sum(-1).clamp_min(1e-30).sqrt()
        out[name] = vector[name] / length.view(*length.shape, *[1] * (vector[name].dim() - 3))
    return vector.replace(out)


class PerTensor(nn.Module):
    """One number for each block and tensor, that multiplies the tensor."""

    def __init__(self, spec: BlockSpec, blocks: int, start: float) -> None:
        super().__init__()
        start_of = {name: torch.full((blocks,), start) for name in spec.block.tensors}
        self.numbers = nn.ParameterDict(start_of)

    def forward(self, batch: WeightBatch) -> WeightBatch:
        """Multiply."""
        return batch.replace(
            {
                n: W * self.numbers[n].view(-1, *[1] * (W.dim() - 3))
                for n, W in batch.tensors.items()
            }
        )


class Rates(nn.Module):
    """Shrink each tensor and go down the direction, by 16 factors and 16 rates that are learned.

    Args:
        spec: The block.
        blocks: How many a net has.
        moves: False to shrink only.
    """

    def __init__(self, spec: BlockSpec, blocks: int, *, moves: bool = True) -> None:
        super().__init__()
        self.shrink = PerTensor(spec, blocks, 1.0)
        self.rate = PerTensor(spec, blocks, 0.3) if moves else None

    def forward(self, U: WeightBatch, direction: WeightBatch) -> WeightBatch:
        """The new weights."""
        out = self.shrink(U)
        return out if self.rate is None else _sum(out, self.rate(direction), -0.01)


class Equivariant(nn.Module):
    """Rates, and what two equivariant layers add: U ↦ rates(U, d) + scale · E(U, d).

    Args:
        spec: The block.
        blocks: How many a net has.
        rms: The usual sizes of weights and of directions, from training nets.
        channels: Between the layers.
        seed: Of the initial parameters.
    """

    def __init__(
        self,
        spec: BlockSpec,
        blocks: int,
        rms: tuple[Mapping[str, float], Mapping[str, float]],
        *,
        channels: int = 4,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.rms = rms
        self.rates = Rates(spec, blocks)
        self.scale = PerTensor(spec, blocks, 0.003)
        generator = torch.Generator().manual_seed(seed)
        self.first = EquivariantLayer(
            spec, blocks=blocks, inputs=2, outputs=channels, relu=True, generator=generator
        )
        self.last = EquivariantLayer(
            spec, blocks=blocks, inputs=channels, outputs=1, generator=generator
        )

    def forward(self, U: WeightBatch, direction: WeightBatch) -> WeightBatch:
        """The new weights."""
        both = [U.scaled(self.rms[0]), direction.scaled(self.rms[1])]
        out = self.last(self.first(WeightBatch.cat(both, along="channels")))
        return _sum(self.rates(U, direction), self.scale(out), 0.01)


class Flat(nn.Module):
    """The same with an MLP on all weights and the direction in one row, about as large.

    Args:
        spec: The block.
        blocks: How many a net has.
        rms: The usual sizes of weights and of directions, from training nets.
        parameters: About how many.
        seed: Of the initial parameters.
    """

    def __init__(
        self,
        spec: BlockSpec,
        blocks: int,
        rms: tuple[Mapping[str, float], Mapping[str, float]],
        *,
        parameters: int,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.rms = rms
        self.rates = Rates(spec, blocks)
        self.scale = PerTensor(spec, blocks, 0.003)
        weights = blocks * spec.weights
        hidden = max(1, parameters // (3 * weights))
        generator = torch.Generator().manual_seed(seed)
        self.mlp = nn.Sequential(nn.Linear(2 * weights, hidden), nn.ReLU())
        self.mlp.append(nn.Linear(hidden, weights))
        with torch.no_grad():
            for parameter in self.mlp.parameters():
                bound = (6 / parameter.shape[-1]) ** 0.5 if parameter.dim() > 1 else 0.0
                parameter.uniform_(-bound, bound, generator=generator)

    def forward(self, U: WeightBatch, direction: WeightBatch) -> WeightBatch:
        """The new weights."""
        both = torch.cat([U.scaled(self.rms[0]).flat(), direction.scaled(self.rms[1]).flat()], -1)
        out = WeightBatch.from_flat(U.spec, self.mlp(both), U.blocks)
        return _sum(self.rates(U, direction), self.scale(out), 0.01)


def _sum(one: WeightBatch, two: WeightBatch, factor: float) -> WeightBatch:
    return one.replace({name: W + factor * two[name] for name, W in one.tensors.items()})
