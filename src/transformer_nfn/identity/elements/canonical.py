"""A block without the coordinates that nothing depends on, and back.

Canonical weights read the plain normalised stream n and write what LayerNorm can see:

- the scale γ and shift β of the norm that a matrix reads are folded into it:
  (γ ⊙ n + β) W + b = n (γ W) + (b + β W);
- under LayerNorm n and all that is written are orthogonal to the vector of ones, so readers and
  writers lose what they have along it;
- the key bias adds the same to all scores of a query, which softmax ignores, so it is 0 (not under
  RoPE, where it turns with the position);
- the value bias δ adds δ O to every token, since attention weights sum to 1, so it moves into bO.

What was taken out is the `Gauge`; `dressed` puts any gauge back in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.space import Block, Index, WeightBatch, join_bias, split_bias

#: Scale and shift of a norm.
Norm = tuple[Tensor, Tensor]
#: Of the streams that the halves of a block read, in order, and of the one that the last of them
#: writes; None is the identity.
Bases = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Gauge:
    """What a block's weights have beside the canonical ones; all in the file's own coordinates.

    Attributes:
        norms: Scale and shift of the norms that the halves read.
        ones: For each reader (folded) and writer its coefficients along the vector of ones.
        biases: Those of keys and values that are free, as stored.
        shared: Of a router, folded, what the columns of all experts have in common.
    """

    norms: tuple[Norm, ...]
    ones: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    shared: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Rules:
    """What the family allows to take out.

    Attributes:
        centred: What LayerNorm takes away does not count in what is read.
        centred_writes: Nor in what is written.
        keys: Those whose bias softmax ignores.
        values: Those whose bias can move into that of the output.
        held: Readers without a place for the constant that the shift of their norm makes of them:
            that shift may change only with their weights.
        shared: All halves read one norm.
    """

    centred: bool
    centred_writes: bool
    keys: frozenset[str]
    values: frozenset[str]
    held: frozenset[str] = frozenset()
    shared: bool = False

    @staticmethod
    def of(checkpoint: Checkpoint) -> "Rules":
        """From the norm, the positions and the biases of a checkpoint."""
        names, attentions = checkpoint.reading_norms(0), checkpoint.spec.block.attentions
        keys = frozenset(each.key for each in attentions if not each.rotary)
        values = frozenset(each.value for each in attentions if checkpoint.family.output_bias)
        return Rules(
            centred=checkpoint.centred_reads,
            centred_writes=checkpoint.centred_writes,
            keys=keys,
            values=values,
            held=frozenset(
                name
                for name in checkpoint.spec.block.readers
                if name not in keys | values and not checkpoint.has_bias(name)
            ),
            shared=None not in names and len(set(names)) == 1,
        )

    def holds(self, block: Block, half: int) -> bool:
        """Whether a reader of the norm of a half is held."""
        return any(self.shared or block.readers[name][1] == half for name in self.held)


def seen(
    checkpoint: Checkpoint, rows: Float[Tensor, "t x"], *, inside: bool = False
) -> Float[Tensor, "t x"]:
    """What a norm sees of what is written: under LayerNorm not its mean.

    Args:
        checkpoint: The network.
        rows: What is written.
        inside: By a block, not before the first one.
    """
    if not (checkpoint.centred_writes if inside else checkpoint.centred_reads):
        return rows
    return rows - rows.mean(dim=-1, keepdim=True)


def undressed(
    batch: WeightBatch, norms: tuple[Norm, ...], rules: Rules, unseen: Tensor | None = None
) -> WeightBatch:
    """Canonical weights, float64; the rows of Q, K, V, gate and up end with their bias.

    Args:
        batch: The weights as stored.
        norms: Scale and shift of the norms that the halves read.
        rules: What the family allows.
        unseen: A direction, of the length of the vector of ones, that the stream never has though
            its norm would let it: where the means were taken out and the basis changed.
    """
    block, D = _folded(batch, norms, rules, unseen), batch.spec.sizes["D"]
    for name, axis in batch.spec.block.shifted.items():
        block[name] = block[name] - block[name].mean(dim=axis, keepdim=True)
    for each in batch.spec.block.attentions:
        V, O, bias = each.value, each.output_weight, each.constant
        if V in rules.values:
            block[bias] = block[bias] + value_constant(block[V][..., D, :], block[O])
    for name in rules.keys | rules.values:
        block[name] = _with_row(block[name], torch.zeros_like(block[name][..., D, :]))
    if rules.centred_writes:
        for name in batch.spec.block.writers:
            block[name] = block[name] - block[name].mean(dim=-1, keepdim=True)
    return _batch(batch, block)


def _folded(
    batch: WeightBatch, norms: tuple[Norm, ...], rules: Rules, unseen: Tensor | None
) -> dict[str, Tensor]:
    """A block whose readers have taken over their norms, less what these do not let through."""
    block = {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}
    D = batch.spec.sizes["D"]
    for name, (axis, half) in batch.spec.block.readers.items():
        scale, shift = norms[half]
        weight, bias = split_bias(block, name, axis, D)
        bias = bias + torch.tensordot(shift, weight, dims=([0], [axis % weight.dim()]))
        weight = weight * along(scale, axis, weight.dim())
        if rules.centred:
            weight = weight - weight.mean(dim=axis, keepdim=True)
        elif unseen is not None:
            weight = weight - _times(_coefficients(weight, axis, unseen), unseen, axis)
        join_bias(block, name, axis, weight, bias)
    return block


def gauge_of(
    batch: WeightBatch, norms: tuple[Norm, ...], rules: Rules, unseen: Tensor | None = None
) -> Gauge:
    """What `undressed` takes out of these weights."""
    block = {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}
    D = batch.spec.sizes["D"]
    ones: dict[str, Tensor] = {}
    if rules.centred or unseen is not None:
        direction = torch.ones(D, dtype=torch.float64) if unseen is None else unseen
        for name, (axis, half) in batch.spec.block.readers.items():
            weight, _ = split_bias(block, name, axis, D)
            folded = weight * along(norms[half][0], axis, weight.dim())
            ones[name] = _coefficients(folded, axis, direction)
    if rules.centred_writes:
        ones |= {name: block[name].mean(dim=-1) for name in batch.spec.block.writers}
    return Gauge(
        tuple((invertible(scale), shift) for scale, shift in norms),
        ones,
        {name: block[name][..., D, :] for name in rules.keys | rules.values},
        _shared(batch, norms, rules, unseen),
    )


def _shared(
    batch: WeightBatch, norms: tuple[Norm, ...], rules: Rules, unseen: Tensor | None
) -> dict[str, Tensor]:
    if not (shifted := batch.spec.block.shifted):
        return {}
    block = _folded(batch, norms, rules, unseen)
    return {name: block[name].mean(dim=axis) for name, axis in shifted.items()}


def dressed(canonical: WeightBatch, gauge: Gauge, unseen: Tensor | None = None) -> WeightBatch:
    """The weights that `undressed` makes canonical and that have this gauge."""
    block = {name: tensor[0, 0, 0] for name, tensor in canonical.tensors.items()}
    D = canonical.spec.sizes["D"]
    direction = torch.ones(D, dtype=torch.float64) if unseen is None else unseen
    for name, value in gauge.shared.items():
        block[name] = block[name] + value.unsqueeze(canonical.spec.block.shifted[name])
    for name, (axis, half) in canonical.spec.block.readers.items():
        scale, shift = gauge.norms[half]
        weight, bias = split_bias(block, name, axis, D)
        if name in gauge.ones:
            weight = weight + _times(gauge.ones[name], direction, axis)
        weight = weight / along(invertible(scale), axis, weight.dim())
        bias = bias - torch.tensordot(shift, weight, dims=([0], [axis % weight.dim()]))
        join_bias(block, name, axis, weight, bias)
    for each in canonical.spec.block.attentions:
        if (given := gauge.biases.get(each.value)) is not None:
            # `bias` in V is now -βV, since the canonical one is 0: the constant is what is above.
            constant = value_constant(
                given - block[each.value][..., D, :], block[each.output_weight]
            )
            block[each.constant] = block[each.constant] - constant
    for name, value in gauge.biases.items():
        block[name] = _with_row(block[name], value)
    for name in canonical.spec.block.writers:
        if name in gauge.ones:
            block[name] = block[name] + gauge.ones[name].unsqueeze(-1)
    return _batch(canonical, block)


def invertible(scale: Tensor) -> Tensor:
    """A norm's scale, 1 where it is 0: nobody sees that coordinate, so its readers may be 0."""
    return torch.where(scale == 0, 1.0, scale)


def gauge_axes(batch: WeightBatch, name: str) -> tuple[Index, ...]:
    """The declared axes of a coefficient along the ones, or of a bias row: all but the stream."""
    return tuple(i for i in batch.spec.block.tensors[name] if i.label not in ("x", "z", "w"))


def value_constant(bias: Tensor, O: Tensor) -> Tensor:
    """Σ_heads δ O, for δ "h v" and O "h v x", or "g v" and "g m v x"."""
    if O.dim() == 4:
        return torch.einsum("gv,gmvx->x", bias, O)
    return torch.einsum("hv,hvx->x", bias, O)


def rotated(canonical: WeightBatch, bases: Bases) -> WeightBatch:
    """Canonical weights in other bases of the streams: readers Rᵀ W, writers W R.

    Args:
        canonical: The weights.
        bases: R of each stream.
    """
    block = {name: tensor[0, 0, 0] for name, tensor in canonical.tensors.items()}
    D = canonical.spec.sizes["D"]
    for name, (axis, half) in canonical.spec.block.readers.items():
        if (R := bases[half]) is None:
            continue
        weight, bias = split_bias(block, name, axis, D)
        turned = torch.tensordot(R, weight, dims=([0], [axis % weight.dim()]))  # x first
        join_bias(block, name, axis, turned.movedim(0, axis), bias)
    for name, half in canonical.spec.block.writers.items():
        if (R := bases[half + 1]) is not None:
            block[name] = block[name] @ R
    for name, half in canonical.spec.block.gains.items():
        if (R := bases[half + 1]) is not None:  # a permutation with signs, which a scale has not
            block[name] = block[name] @ R.square()
    return _batch(canonical, block)


def _coefficients(weight: Tensor, axis: int, direction: Tensor) -> Tensor:
    """How much of a direction as long as the vector of ones a reader has."""
    return (weight * along(direction, axis, weight.dim())).sum(dim=axis) / len(direction)


def _times(coefficients: Tensor, direction: Tensor, axis: int) -> Tensor:
    whole = coefficients.unsqueeze(axis)
    return whole * along(direction, axis, whole.dim())


def along(vector: Tensor, axis: int, axes: int) -> Tensor:
    """A vector that broadcasts along one axis of a tensor of so many axes."""
    shape = [1] * axes
    shape[axis] = -1
    return vector.view(shape)


def _with_row(tensor: Tensor, row: Tensor) -> Tensor:
    """Another last row of the axis before the last."""
    return torch.cat([tensor[..., :-1, :], row.unsqueeze(-2)], dim=-2)


def _batch(like: WeightBatch, block: Mapping[str, Tensor]) -> WeightBatch:
    return WeightBatch(
        like.spec, {name: tensor[None, None, None] for name, tensor in block.items()}
    )
