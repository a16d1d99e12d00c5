"""The action of a `NetElement` on a checkpoint, tensor by tensor."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.group import GroupElement
from transformer_nfn.identity.elements.canonical import (
    Gauge,
    Norm,
    Rules,
    dressed,
    gauge_axes,
    gauge_of,
    invertible,
    rotated,
    undressed,
)
from transformer_nfn.identity.elements.element import NetElement, last_stream, streams
from transformer_nfn.space import WeightBatch


def reading(checkpoint: Checkpoint, number: int) -> tuple[Norm, ...]:
    """Scales and shifts of the norms that a block reads."""
    norms = tuple(checkpoint.norm(name) for name in checkpoint.reading_norms(number))
    if (encoder := checkpoint.encoder) is None:
        return norms
    return (*norms, encoder.norm(encoder.last_norm))


def canonical_block(checkpoint: Checkpoint, number: int) -> WeightBatch:
    """The canonical weights of a block."""
    return undressed(checkpoint.block(number), reading(checkpoint, number), Rules.of(checkpoint))


def block_changes(
    checkpoint: Checkpoint, element: NetElement, number: int
) -> Iterator[tuple[str, Tensor]]:
    """The new tensors of one block, and its norms where they change."""
    batch = checkpoint.block(number)
    group = element.blocks[number]
    bases = tuple(element.basis(stream) for stream in streams(checkpoint, number))
    gauge = element.gauges[number] if element.gauges else None
    # What an encoder gives may change with its last norm.
    if gauge is None and element.encoder is None and all(basis is None for basis in bases):
        yield from checkpoint.pack(number, group(batch)).items()
        return
    rules = Rules.of(checkpoint)
    norms = reading(checkpoint, number)
    if gauge is None:
        gauge = moved_gauge(checkpoint, element, number, batch, norms)
    moved = group(rotated(undressed(batch, norms, rules), bases))
    yield from checkpoint.pack(number, dressed(moved, gauge, element.unseen)).items()
    yield from _norm_changes(checkpoint, number, gauge)


def _norm_changes(
    checkpoint: Checkpoint, number: int, gauge: Gauge
) -> Iterator[tuple[str, Tensor]]:
    # That of the encoder comes after these, and is its own.
    for name, (scale, shift) in zip(checkpoint.reading_norms(number), gauge.norms, strict=False):
        if name is not None:
            yield from norm_tensors(checkpoint, name, scale, shift)


def norm_tensors(
    checkpoint: Checkpoint, name: str, scale: Tensor, shift: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """A norm's tensors by name; a shift only where the file has one."""
    yield f"{name}.weight", scale - checkpoint.family.norm_offset
    if f"{name}.bias" in checkpoint.files:
        yield f"{name}.bias", shift


def moved_gauge(
    checkpoint: Checkpoint,
    element: NetElement,
    number: int,
    batch: WeightBatch,
    norms: tuple[Norm, ...],
) -> Gauge:
    """A block's own gauge, carried along: what the result has where nothing else was asked for.

    Args:
        checkpoint: The network.
        element: What acts on it.
        number: Of the block.
        batch: Its weights as stored.
        norms: Of the norms that it reads.
    """
    rules, group = Rules.of(checkpoint), element.blocks[number]
    bases = [element.basis(stream) for stream in streams(checkpoint, number)]
    own = gauge_of(batch, norms, rules)
    moved = []
    for half, name in enumerate(checkpoint.reading_norms(number)):
        fixed, held = checkpoint.gives_stream(name), rules.holds(batch.spec.block, half)
        scale, shift = moved_norm(norms[half], bases[half], fixed, held=held)
        moved.append((scale if fixed else invertible(scale), shift))
    if (encoder := checkpoint.encoder) is not None:
        assert element.encoder is not None
        moved.append(last_norm_of(encoder, element.encoder))
    return Gauge(
        tuple(moved),
        {name: _acted(group, batch, name, value) for name, value in own.ones.items()},
        {name: _acted(group, batch, name, value) for name, value in own.biases.items()},
        {
            name: _turned(value, bases[batch.spec.block.readers[name][1]])
            for name, value in own.shared.items()
        },
    )


def _acted(group: GroupElement, batch: WeightBatch, name: str, value: Tensor) -> Tensor:
    """What belongs to a tensor of a block, but has no axis of the stream, after the group."""
    return group.act(value[None, None, None], gauge_axes(batch, name))[0, 0, 0]


def _turned(vector: Tensor, basis: Tensor | None) -> Tensor:
    """What is read, and its bias, in another basis."""
    if basis is None:
        return vector
    return torch.cat([basis.T @ vector[: len(basis)], vector[len(basis) :]])


def moved_norm(norm: Norm, basis: Tensor | None, fixed: bool, *, held: bool = False) -> Norm:
    """A norm in another basis: permuted where it gives the stream, plain where it was folded away.

    A shift that a reader without bias holds stays beside the scale: (γ n + β) W is
    n (γW) + (β/γ) γW, so in the new basis the scale is 1 and the shift (β/γ) R.
    """
    scale, shift = norm
    if basis is None:
        return norm
    if fixed:  # the basis is a permutation and a sign
        return basis.square().T @ scale, shift @ basis
    if held:
        return torch.ones_like(scale), (shift / invertible(scale)) @ basis
    return torch.ones_like(scale), torch.zeros_like(shift)


def outside_changes(checkpoint: Checkpoint, element: NetElement) -> Iterator[tuple[str, Tensor]]:
    """The new tensors outside the blocks."""
    first, last = element.basis(0), element.basis(last_stream(checkpoint))
    outside = element.outside
    if first is not None or outside is not None:
        for name in checkpoint.writers:
            yield name, moved_writer(checkpoint, name, element)
        for name in checkpoint.held_norms:
            norm = moved_norm(checkpoint.norm(name), first, True)
            yield from norm_tensors(checkpoint, name, *norm)
    if checkpoint.hidden_head:
        yield from _classifier_changes(checkpoint, element, last)
        return
    if last is None and outside is None:
        return
    norm = checkpoint.norm(checkpoint.last_norm)
    target = last_norm_of(checkpoint, element)
    if checkpoint.last_norm:
        yield from norm_tensors(checkpoint, checkpoint.last_norm, *target)
    for head in checkpoint.heads.values():
        if head.tied and not (outside and outside.untied):
            continue
        yield from _head_changes(checkpoint, head.name, norm, target, element)
    if outside and outside.untied:
        for own, of in checkpoint.tied_decoder.items():
            yield own, checkpoint.files.read(of)


def last_norm_of(checkpoint: Checkpoint, element: NetElement) -> Norm:
    """Scale and shift of the norm before the heads, as the element leaves it."""
    norm = checkpoint.norm(checkpoint.last_norm)
    last = element.basis(last_stream(checkpoint))
    if element.outside is not None:
        return element.outside.last_norm
    # Heads may have no bias, so they hold the shift.
    return moved_norm(norm, last, checkpoint.gives_stream(checkpoint.last_norm), held=True)


def moved_writer(checkpoint: Checkpoint, name: str, element: NetElement) -> Tensor:
    """An embedding, or what else writes into the first stream, in float64."""
    writer = checkpoint.writers[name]
    axis = writer.axes.split().index("x")
    rows = checkpoint.files.read(name).double().movedim(axis, -1)  # … x
    ones = rows.mean(dim=-1, keepdim=True)
    centred = checkpoint.centred_reads
    basis = element.basis(0)
    if centred:
        rows = rows - ones
    if basis is not None:
        rows = rows @ basis
    if centred:
        given = element.outside.ones.get(name) if element.outside else None
        rows = rows + (ones if given is None else given.unsqueeze(-1))
    return rows.movedim(-1, axis)


def _head_changes(
    checkpoint: Checkpoint,
    name: str,
    norm: Norm,
    target: Norm,
    element: NetElement,
) -> Iterator[tuple[str, Tensor]]:
    basis, outside = element.basis(last_stream(checkpoint)), element.outside
    head = checkpoint.heads[name]
    weight = checkpoint.files.read(head.weight).double()  # o x
    bias = checkpoint.files.read(head.bias).double() if head.bias else weight.new_zeros(len(weight))
    folded, constant = folded_head(weight, bias, norm, checkpoint.settings.norm == "layer")
    if basis is not None:
        folded = folded @ basis
    ones = outside.ones.get(name) if outside else None
    if checkpoint.settings.norm == "layer":
        coefficients = (weight * norm[0]).mean(dim=1) if ones is None else ones
        direction = torch.ones_like(norm[0]) if element.unseen is None else element.unseen
        folded = folded + torch.outer(coefficients, direction)
    moved = folded / invertible(target[0])
    yield head.own, moved
    if head.bias:
        yield head.bias, constant - moved @ target[1]


def folded_head(weight: Tensor, bias: Tensor, norm: Norm, centred: bool) -> tuple[Tensor, Tensor]:
    """A head that reads the plain normalised stream, "o x" and its constant "o"."""
    constant = bias + weight @ norm[1]
    folded = weight * norm[0]
    return (folded - folded.mean(dim=1, keepdim=True) if centred else folded), constant


def _classifier_changes(
    checkpoint: Checkpoint, element: NetElement, basis: Tensor | None
) -> Iterator[tuple[str, Tensor]]:
    names = checkpoint.hidden_head
    assert names is not None
    weight1, bias1, weight2, _ = (checkpoint.files.read(name).double() for name in names)
    ones = weight1.mean(dim=0)
    if basis is not None:
        weight1 = basis.T @ (weight1 - ones) + ones
    if element.outside and names[0] in element.outside.ones:
        given = element.outside.ones[names[0]]
        order, scale = element.hidden or (torch.arange(len(bias1)), torch.ones_like(bias1))
        # Given in the target's coordinates; the neurons move below.
        back = torch.empty_like(given)
        back[order] = given / scale
        weight1 = weight1 - ones + back
    if element.hidden:
        order, scale = element.hidden
        weight1, bias1 = weight1[:, order] * scale, bias1[order] * scale
        weight2 = weight2[order] / scale.unsqueeze(1)
    yield from zip(names[:3], (weight1, bias1, weight2), strict=True)
