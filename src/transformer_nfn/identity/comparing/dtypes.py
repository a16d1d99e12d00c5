"""In which dtypes a file is run by those who load it."""

import torch

from transformer_nfn.checkpoints import Checkpoint


def said_dtype(checkpoint: Checkpoint) -> tuple[object, torch.dtype | None]:
    """What a config says of the dtype, and the dtype that it means, if it does."""
    said = checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype")
    said = None if said == "auto" else said
    kind = getattr(torch, said.removeprefix("torch."), None) if isinstance(said, str) else None
    return said, kind if isinstance(kind, torch.dtype) else None


def loader_dtypes(checkpoint: Checkpoint) -> dict[torch.dtype, bool]:
    """The dtypes in which a file may be run, and whether that should lose no more than storing did.

    It should in the finest that is stored, and in the one that a loader obeys if it is stored. Of a
    file in float64 some steps are computed in float32 by every loader.
    """
    stored, (_, said) = checkpoint.files.float_dtypes(), said_dtype(checkpoint)
    asked = {said} if said is not None and said.is_floating_point else set()
    finest = min(stored, key=lambda kind: torch.finfo(kind).eps)
    steps = {torch.float32} if torch.float64 in stored else set()
    held = {finest} | (asked & stored)
    return {kind: kind in held for kind in stored | asked | steps}
