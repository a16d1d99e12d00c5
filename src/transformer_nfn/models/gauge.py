"""Whole networks in a form that symmetries beyond the paper's group do not change.

See "Symmetries of the zoo's net beyond the paper's group" in the documentation. Shifts and scales
are removed here; rotations are not, but no product over a shared axis sees them.
"""

import torch
from torch import Tensor

from transformer_nfn.space import (
    Block,
    Half,
    NetBatch,
    NormPlace,
    ShapeError,
    WeightBatch,
    unit_neurons,
)


def canonical(net: NetBatch) -> NetBatch:
    """The same networks in float64, means, scales of norms and of neurons taken out.

    LayerNorm takes the mean of what is written away, and what it gives has none: writers and
    readers lose theirs. Where a norm reads nothing but what a part writes (the paper's net), that
    gets the size 1. A ReLU neuron reads with a column and bias of size 1.

    Raises:
        ShapeError: If the block does not say which norms it has.
    """
    spec = net.blocks.spec
    check_halves(spec.block)
    blocks = {name: tensor.double() for name, tensor in net.blocks.tensors.items()}
    embedding = {name: tensor.double() for name, tensor in net.embedding.items()}
    classifier = {name: tensor.double() for name, tensor in net.classifier.items()}
    D, halves = spec.sizes["D"], spec.block.halves
    # One stream is read by all norms, so they are all of one kind or nothing is known of its mean.
    centred = all(half.centred for half in halves)
    # What reads the stream as it is sees its mean, and a scale of each coordinate turns a mean.
    reads = centred and not any(half.raw for half in halves)
    normed = reads or all(half.place is NormPlace.AFTER_SUM for half in halves)
    writes = centred and normed and not spec.block.gains
    for half in halves:
        part = half.part
        own = {name: blocks[name] for name in part.tensors}
        if reads:
            own |= {name: _read(own[name], part.reading_axis(name), D) for name in part.readers}
        if writes:
            own |= {name: _written(own[name]) for name in part.writers if name in own}
        own = part.with_unit_scales(own)
        blocks |= part.with_unit_output(own) if _only_read_by_a_norm(half) else own
    if reads:
        embedding = {name: _written(tensor) for name, tensor in embedding.items()}
    if classifier:
        if centred:
            classifier["weight1"] = _read(classifier["weight1"], -2, D)
        names = ("weight1", "bias1", "weight2")
        units = unit_neurons(*(classifier[name] for name in names))
        classifier |= dict(zip(names, units, strict=True))
    return NetBatch(WeightBatch(spec, blocks), embedding, classifier)


def check_halves(block: Block) -> None:
    """Refuse a block of which only tables are known: what its norms hide is not."""
    if not block.halves:
        raise ShapeError(
            f"block {block.name!r} does not say which norms it has, so what they hide cannot be "
            "taken out; make it with compose(…)"
        )


def _only_read_by_a_norm(half: Half) -> bool:
    return not half.skip and half.place is NormPlace.AFTER


def _written(tensor: Tensor) -> Tensor:
    return tensor - tensor.mean(dim=-1, keepdim=True)


def _read(tensor: Tensor, axis: int, width: int) -> Tensor:
    """Without the mean along the axis that reads; a row of biases below stays."""
    rows = tensor.narrow(axis, 0, width)
    bias = tensor.narrow(axis, width, tensor.shape[axis] - width)
    return torch.cat([rows - rows.mean(dim=axis, keepdim=True), bias], dim=axis)
