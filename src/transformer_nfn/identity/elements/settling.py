"""An element that was found between two files, made exact.

Gauges are read off the second file, so all of them are rounded. What may be anything can stay so.
What a symmetry leaves no choice for is computed from the first file instead; it is the same up to
rounding. What nobody would read is left out.
"""

from dataclasses import replace

import torch

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.elements.acting import (
    last_norm_of,
    moved_gauge,
    moved_norm,
    reading,
)
from transformer_nfn.identity.elements.canonical import Gauge, Norm, Rules, invertible
from transformer_nfn.identity.elements.element import NetElement, Outside, last_stream, streams
from transformer_nfn.identity.elements.parts import free_writers
from transformer_nfn.identity.elements.table import gauge_table


def settled(element: NetElement, checkpoint: Checkpoint) -> NetElement:
    """The element with exact values where its network leaves no choice.

    Args:
        element: A symmetry up to rounding.
        checkpoint: What it acts on.
    """
    gauges = tuple(
        None if gauge is None else _gauge(gauge, element, checkpoint, number)
        for number, gauge in enumerate(element.gauges)
    )
    outside = element.outside and _outside(element.outside, element, checkpoint)
    return replace(element, gauges=gauges, outside=outside)


def _gauge(gauge: Gauge, element: NetElement, checkpoint: Checkpoint, number: int) -> Gauge:
    table, rules = gauge_table(checkpoint), Rules.of(checkpoint)
    own, ones, block = reading(checkpoint, number), dict(gauge.ones), checkpoint.spec.block
    names = checkpoint.reading_norms(number)
    bases = tuple(element.basis(stream) for stream in streams(checkpoint, number))
    norms = [
        _norm(norm, own[half], bases[half], checkpoint, name, held=rules.holds(block, half))
        for half, (name, norm) in enumerate(zip(names, gauge.norms, strict=False))
    ]
    if (encoder := checkpoint.encoder) is not None and element.encoder is not None:
        norms.append(last_norm_of(encoder, element.encoder))
    if rules.held & set(ones):
        moved = moved_gauge(checkpoint, element, number, checkpoint.block(number), own)
        ones |= {name: moved.ones[name] for name in rules.held if name in ones}
    return Gauge(
        tuple(norms),
        {name: value for name, value in ones.items() if f"ones.{name}" in table},
        {name: value for name, value in gauge.biases.items() if f"bias.{name}" in table},
        gauge.shared,
    )


def _norm(
    given: Norm,
    own: Norm,
    basis: torch.Tensor | None,
    checkpoint: Checkpoint,
    name: str | None,
    *,
    held: bool,
) -> Norm:
    """The scale may be anything before a reader; β/γ only where that has a bias for β W."""
    if checkpoint.gives_stream(name):
        return moved_norm(own, basis, True)
    if not held or checkpoint.family.norms is None:
        return given
    ratio = own[1] / invertible(own[0])
    return given[0], (ratio if basis is None else ratio @ basis) * given[0]


def _outside(outside: Outside, element: NetElement, checkpoint: Checkpoint) -> Outside:
    own = checkpoint.norm(checkpoint.last_norm)
    basis = element.basis(last_stream(checkpoint))
    heads = checkpoint.heads.values()
    shared = not outside.untied and any(head.tied for head in heads)
    if checkpoint.gives_hidden_states or shared:
        norm = moved_norm(own, basis, checkpoint.gives_stream(checkpoint.last_norm), held=True)
    else:
        held = not all(head.bias for head in heads)
        norm = _norm(outside.last_norm, own, basis, checkpoint, checkpoint.last_norm, held=held)
    if checkpoint.settings.norm != "layer":
        return Outside(norm, {}, outside.untied)
    writers = set(checkpoint.writers) if checkpoint.centred_reads else set()
    if writers and not outside.untied and element.unseen is None:
        writers = set(free_writers(checkpoint))
    free = writers | {name for name, head in checkpoint.heads.items() if head.bias}
    if not outside.untied:
        free -= {name for name, head in checkpoint.heads.items() if head.tied}
    free |= set((checkpoint.hidden_head or ())[:1])
    return Outside(
        norm, {name: value for name, value in outside.ones.items() if name in free}, outside.untied
    )
