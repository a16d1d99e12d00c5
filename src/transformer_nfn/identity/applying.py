"""A checkpoint and a symmetry of it make another checkpoint of the same function."""

from pathlib import Path

import torch

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.elements.applying import write_element
from transformer_nfn.identity.elements.element import NetElement
from transformer_nfn.identity.elements.readback import orders_of_choices
from transformer_nfn.identity.elements.rules import ElementError
from transformer_nfn.identity.running.inputs import fresh_seed
from transformer_nfn.identity.running.jumps import ties


def apply_element(checkpoint: Checkpoint, element: NetElement, out: str | Path) -> Path:
    """Write the checkpoint that an element makes of another.

    Where LayerNorms become RMSNorms, config.json says so with the key `norm`, which is not of the
    format, so that it is not forgotten.

    Args:
        checkpoint: What it acts on.
        element: The symmetry.
        out: A `.safetensors` file, or a folder.

    Raises:
        ElementError: If it is no symmetry of this checkpoint, or its result is not finite; nothing
            is written then.
    """
    if _reorders_choices(checkpoint, element) and ties(checkpoint, fresh_seed()):
        raise ElementError(
            "two experts are equally good for some word, so the first of them is chosen: they must "
            "keep their order; leave out the part experts"
        )
    return write_element(checkpoint, element, out)


def _reorders_choices(checkpoint: Checkpoint, element: NetElement) -> bool:
    return any(
        not torch.equal(order, torch.arange(len(order)))
        for number in range(checkpoint.blocks)
        for _, _, order in orders_of_choices(checkpoint, element, number)
    )
