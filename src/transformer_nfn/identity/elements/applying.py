"""The tensors that an element makes of a checkpoint, and a file of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Entry, rewrite
from transformer_nfn.identity.elements.acting import block_changes, outside_changes
from transformer_nfn.identity.elements.check import check_element
from transformer_nfn.identity.elements.element import NetElement
from transformer_nfn.identity.elements.readback import check_block, check_ties
from transformer_nfn.identity.elements.rules import ElementError


def write_element(checkpoint: Checkpoint, element: NetElement, out: str | Path) -> Path:
    """As `apply_element`, but no network is run, so experts that tie by chance are not seen."""
    added, config = untied(checkpoint, element)
    if element.unseen is not None:
        config["norm"] = "rms"
    values = _finite(checkpoint, changes(checkpoint, element), added)
    return rewrite(checkpoint, values, out, added=added, config=config)


def untied(checkpoint: Checkpoint, element: NetElement) -> tuple[dict[str, Entry], dict[str, Any]]:
    """The tensors and settings that the result has beside those of the checkpoint."""
    if element.outside is None or not element.outside.untied:
        return {}, {}
    added = {
        head.own: checkpoint.files.entry(head.weight)
        for head in checkpoint.heads.values()
        if head.tied
    }
    added |= {own: checkpoint.files.entry(of) for own, of in checkpoint.tied_decoder.items()}
    key = checkpoint.tying_key
    return added, {key: False} if added and key is not None else {}


def changes(checkpoint: Checkpoint, element: NetElement) -> Iterator[tuple[str, Tensor]]:
    """Names and new values, in float64, of all tensors that may differ; one block at a time.

    Raises:
        ElementError: If the element is no symmetry of this checkpoint.
    """
    check_element(checkpoint, element)
    if (encoder := checkpoint.encoder) is not None and element.encoder is not None:
        own = set(checkpoint.writers) if checkpoint.shares_words else set()
        inner = changes(encoder, element.encoder)
        yield from ((name, value) for name, value in inner if name not in own)
    for number in range(checkpoint.blocks):
        check_ties(checkpoint, element, number)
        tensors = dict(block_changes(checkpoint, element, number))
        gauged = element.gauges and element.gauges[number] is not None
        if element.bases or gauged or element.encoder is not None:
            check_block(checkpoint, element, number, tensors)
        yield from tensors.items()
    yield from outside_changes(checkpoint, element)


def _finite(
    checkpoint: Checkpoint, values: Iterator[tuple[str, Tensor]], added: dict[str, Entry]
) -> Iterator[tuple[str, Tensor]]:
    """Values as they will be stored; an error where one of them is not a number there."""
    for name, value in values:
        entry = added[name] if name in added else checkpoint.files.entry(name)
        stored = value.to(entry.dtype)
        if stored.is_floating_point() and not torch.isfinite(stored).all():
            raise ElementError(
                f"{name} would have NaN or infinite numbers in {entry.dtype}; {checkpoint.path} "
                f"has them already, or the element is too large for this dtype"
            )
        yield name, stored
