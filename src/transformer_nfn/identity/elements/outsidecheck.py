"""Whether what an element does outside the blocks is a symmetry: writers, heads, the last norm."""

from collections.abc import Iterator

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Head
from transformer_nfn.identity.elements.acting import moved_norm
from transformer_nfn.identity.elements.canonical import invertible
from transformer_nfn.identity.elements.element import NetElement, Outside, last_stream
from transformer_nfn.identity.elements.parts import free_writers
from transformer_nfn.identity.elements.rules import (
    EXACT,
    ElementError,
    check_equal,
    check_laid,
    check_norm,
)

#: Rows of a slice.
_ROWS = 4096


def check_outside(checkpoint: Checkpoint, element: NetElement) -> None:
    """Raise unless what an element does outside the blocks is a symmetry.

    Raises:
        ElementError: With the first thing that is wrong.
    """
    outside, heads = element.outside, checkpoint.heads.values()
    untied = outside is not None and outside.untied
    shared = any(head.tied for head in heads)
    if element.bases and not untied and (shared or checkpoint.tied_decoder):
        raise ElementError(
            "the basis changes, so what shares its tensor with the embedding needs one of its own"
        )
    if outside is None:
        return
    if untied and not shared and not checkpoint.tied_decoder:
        raise ElementError("outside.untied, but nothing is tied to the embedding")
    basis = element.basis(last_stream(checkpoint))
    name = checkpoint.last_norm
    fixed = checkpoint.gives_stream(name)
    held = fixed or checkpoint.gives_hidden_states or (shared and not untied)
    own = checkpoint.norm(name)
    wanted = moved_norm(own, basis, fixed, held=True) if held else own
    check_norm(checkpoint, outside.last_norm, wanted, "outside", name, free=not held)
    _check_writers(checkpoint, element, outside)
    for head in heads:
        if head.tied and not untied:
            if head.name in outside.ones:
                raise ElementError(f"outside.ones.{head.name}: it has no tensor of its own")
            continue
        if head.bias is None:
            _check_constant(checkpoint, element, outside, head)
        _check_head(checkpoint, outside, head)
    _check_classifier(checkpoint, outside)


def _check_writers(checkpoint: Checkpoint, element: NetElement, outside: Outside) -> None:
    """Means may be anything under LayerNorm, but not in what is a head too, or under RMSNorm."""
    centred = checkpoint.centred_reads
    free = checkpoint.writers if outside.untied and centred else free_writers(checkpoint)
    for name, writer in checkpoint.writers.items():
        given, place = outside.ones.get(name), f"outside.ones.{name}"
        if element.unseen is not None:
            if given is None or given.any():
                raise ElementError(f"{place} is not zero, and an RMSNorm sees the mean")
        elif given is not None and name not in free:
            axis = writer.axes.split().index("x")
            check_equal(given, checkpoint.files.read(name).double().mean(dim=axis), place)
        elif given is not None:
            axis = writer.axes.split().index("x")
            for means, rows in _slices(checkpoint, name, axis, given):
                _check_means(means, rows, checkpoint, name, place)


def _check_constant(
    checkpoint: Checkpoint, element: NetElement, outside: Outside, head: Head
) -> None:
    """A head without bias: what the norm's shift makes of it must stay.

    With p = β'/γ' of the new norm and F the folded weight less its mean, W' = (F R + c dᵀ) / γ', so
    W' β' = F R p + c (d·p), for d the ones, or `unseen`.
    """
    (scale, shift), (new_scale, new_shift) = (
        checkpoint.norm(checkpoint.last_norm),
        outside.last_norm,
    )
    p, basis = new_shift / invertible(new_scale), element.basis(last_stream(checkpoint))
    centred = checkpoint.settings.norm == "layer"
    along = p.sum() if element.unseen is None else element.unseen @ p
    turned = p if basis is None else basis @ p
    given, at = outside.ones.get(head.name), 0
    for rows in checkpoint.files.chunks(head.weight, _ROWS):
        weight = rows.double()
        folded = weight * scale
        mean = folded.mean(dim=1)
        before = weight @ shift
        size = (weight.abs() @ shift.abs()) + (folded.abs() @ turned.abs())
        after = folded @ turned
        if centred:
            c = mean if given is None else given[at : at + len(rows)]
            after = after - mean * turned.sum() + c * along
            size = size + (mean * turned.sum()).abs() + (c * along).abs()
        if not ((after - before).abs() <= EXACT * size).all():
            raise ElementError(
                f"outside.shift changes the constant of {head.name}, which has no bias to take it"
            )
        at += len(rows)


def _check_head(checkpoint: Checkpoint, outside: Outside, head: Head) -> None:
    (scale, shift), (new_scale, new_shift) = (
        checkpoint.norm(checkpoint.last_norm),
        outside.last_norm,
    )
    # β W is laid over the constant of each row, which counts as the row itself does.
    sizes = [(b / invertible(a)).norm()[None] for a, b in ((new_scale, new_shift), (scale, shift))]
    dtype = checkpoint.files.entry(head.weight).dtype
    check_laid(sizes[0], torch.ones(1).double(), sizes[1], dtype, "outside.shift")
    if (given := outside.ones.get(head.name)) is not None:
        for coefficients, rows in _slices(checkpoint, head.weight, 1, given):
            place = f"outside.ones.{head.name}"
            _check_means(coefficients, rows * scale, checkpoint, head.weight, place)


def _check_classifier(checkpoint: Checkpoint, outside: Outside) -> None:
    name = (checkpoint.hidden_head or ("",))[0]
    if (given := outside.ones.get(name)) is not None:
        columns = checkpoint.files.read(name).double().T
        _check_means(given, columns, checkpoint, name, f"outside.ones.{name}")


def _slices(
    checkpoint: Checkpoint, name: str, axis: int, given: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Coefficients and the rows that they are laid over, some at a time."""
    if axis == 1 and len(checkpoint.files.entry(name).shape) == 2:
        for number, rows in enumerate(checkpoint.files.chunks(name, _ROWS)):
            yield given[number * _ROWS :][: len(rows)], rows.double()
        return
    rows = checkpoint.files.read(name).double().movedim(axis, -1)
    yield given.reshape(-1), rows.reshape(-1, checkpoint.D)


def _check_means(
    given: Tensor, rows: Tensor, checkpoint: Checkpoint, name: str, place: str
) -> None:
    """Coefficients along the ones, beside the rows that they are laid over."""
    root, means = checkpoint.D**0.5, rows.mean(dim=1, keepdim=True)
    under = (rows - means).norm(dim=1)
    dtype = checkpoint.files.entry(name).dtype
    check_laid(root * given.abs(), under, root * means.abs(), dtype, place)
