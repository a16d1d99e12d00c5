"""How far off rounding leaves the canonical weights of a block: variances, number by number.

The numbers on disk are off by a known amount (`rounding.spread`), each independently of the others.
Here that is carried through everything `canonical.undressed` does to them, to first order: the
variance of a product x y is y² var x + x² var y, that of a sum is the sum.
"""

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.basis import Basis
from transformer_nfn.identity.comparing.rounding import spread_of
from transformer_nfn.identity.elements.acting import reading
from transformer_nfn.identity.elements.canonical import (
    Norm,
    Rules,
    along,
)
from transformer_nfn.space import WeightBatch, join_bias, split_bias


def block_variances(
    checkpoint: Checkpoint, number: int, *, exact_zeros: bool = False
) -> WeightBatch:
    """The variance of each canonical weight of a block.

    The bias row of a reader (Q, K, V, gate, up) is the last one, as in the canonical weights.

    Args:
        checkpoint: The file.
        number: Which block.
        exact_zeros: Whether a stored 0 is one; else something smaller may have become of it.
    """
    batch = checkpoint.block(number)
    block = {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}
    off = spread_of(checkpoint, exact_zeros=exact_zeros)
    variances = {
        name: tensor[0, 0, 0].square() for name, tensor in off.block(number).tensors.items()
    }
    norms, encoder = reading(checkpoint, number), checkpoint.encoder
    rules = Rules.of(checkpoint)
    D = batch.spec.sizes["D"]
    for name, (axis, half) in batch.spec.block.readers.items():
        if half < 0:
            norm_variance = _norm_variance(off, encoder.last_norm if encoder is not None else None)
        else:
            norm_variance = _norm_variance(off, checkpoint.reading_norms(number)[half])
        _read_through(block, variances, name, axis, norms[half], norm_variance, D)
    for name, axis in batch.spec.block.shifted.items():  # less the mean of n numbers
        own, n = variances[name], variances[name].shape[axis]
        variances[name] = own * (1 - 2 / n) + own.mean(dim=axis, keepdim=True) / n
    for each in batch.spec.block.attentions:
        if each.value not in rules.values:
            continue
        bias, O = block[each.value][..., D, :], block[each.output_weight]
        bias_variance = variances[each.value][..., D, :]
        if O.dim() == 4:
            bias, bias_variance = bias.unsqueeze(1), bias_variance.unsqueeze(1)  # g m v
        moved = bias.square().unsqueeze(-1) * variances[each.output_weight]
        moved = moved + bias_variance.unsqueeze(-1) * O.square()
        variances[each.constant] = variances[each.constant] + moved.flatten(0, -2).sum(dim=0)
    for name in rules.keys | rules.values:
        variances[name][..., D, :] = 0.0
    return WeightBatch(batch.spec, {n: t[None, None, None] for n, t in variances.items()})


def with_spread(
    variances: WeightBatch,
    block: WeightBatch,
    known: tuple[Basis | None, ...],
) -> WeightBatch:
    """Variances with what is not known of the bases that a block is compared in.

    Args:
        variances: Of the block.
        block: Its canonical weights.
        known: How well the bases are known, in the order of `Bases`.
    """
    found = dict(variances.tensors)
    D = block.spec.sizes["D"]
    declared = block.spec.block
    streams = dict(declared.readers) | {
        name: (-1, half + 1) for name, half in declared.writers.items()
    }
    for name, (axis, stream) in streams.items():
        if (basis := known[stream]) is None:
            continue
        tensor = block[name]
        axis = axis % tensor.dim()
        rows = tensor.narrow(axis, 0, D).movedim(axis, -1)
        # All that counts later is the sum over the stream.
        each = (basis.spread(rows) / D).unsqueeze(axis)
        more = torch.zeros_like(tensor)
        more.narrow(axis, 0, D).add_(each)
        found[name] = found[name] + more
    return WeightBatch(block.spec, found)


def norm_variances(checkpoint: Checkpoint, name: str | None) -> Norm:
    """The variances of a norm's scale and shift; 0 where it has none."""
    return _norm_variance(spread_of(checkpoint), name)


def _norm_variance(off: Checkpoint, name: str | None) -> Norm:
    found = []
    for part in ("weight", "bias"):
        stored = name is not None and f"{name}.{part}" in off.files
        spread = off.files.read(f"{name}.{part}") if stored else torch.zeros(off.D).double()
        found.append(spread.square())
    return found[0], found[1]


def _read_through(
    block: dict[str, Tensor],
    variances: dict[str, Tensor],
    name: str,
    axis: int,
    norm: Norm,
    norm_variance: Norm,
    D: int,
) -> None:
    """What a reader's weights and bias become when they take over the norm's scale and shift.

    Replaces a reader's entries of both tables; the block's bias is then the folded one.
    """
    weight, bias = split_bias(block, name, axis, D)
    off_weight, off_bias = split_bias(variances, name, axis, D)
    scale, shift, off_scale, off_shift = (
        along(vector, axis, weight.dim()) for vector in (*norm, *norm_variance)
    )
    squares = weight.square()
    off_bias = off_bias + (shift.square() * off_weight + squares * off_shift).sum(dim=axis)
    bias = bias + (shift * weight).sum(dim=axis)
    off_weight = scale.square() * off_weight + squares * off_scale
    join_bias(block, name, axis, weight, bias)
    join_bias(variances, name, axis, off_weight, off_bias)
