"""One network from a file, a folder or a model in memory, as layers take it."""

from dataclasses import dataclass
from pathlib import Path

import torch

from transformer_nfn.checkpoints import Checkpoint, Config, Model, TensorFiles, opened
from transformer_nfn.space import (
    TORCH_ENCODER,
    Layout,
    NetBatch,
    NormChoice,
    Norms,
    check_choice,
    fold_norms,
    for_layers,
    keep_norms,
)


def read_net(
    source: Model,
    *,
    config: Config = None,
    norms: NormChoice = "fold",
    biases: bool = True,
    dtype: torch.dtype = torch.float32,
) -> NetBatch:
    """The blocks of a network of a known family: a checkpoint or a model of `transformers`.

    The blocks are declared so that layers can read them (`for_layers`): without rotary positions
    and without the scales of ReLU's neurons. Embeddings and heads are not read.

    Args:
        source: A path or URL, a model of `transformers`, or tensors by name.
        config: Of tensors; or another than that beside a path.
        norms: Fold scales and shifts of norms into what reads them, keep them as tensors, or drop
            them. Norms after the sum, as BERT has them, cannot be folded.
        biases: Whether biases come along; without them a Llama is a GROUPED block.
        dtype: Of the batch.

    Raises:
        CheckpointError: If the file is not sound, or of no family that is read.
        DeclarationError: If there are no layers for its blocks.
        ShapeError: If norms cannot be folded, or biases are left out that are not 0.
    """
    check_choice(norms)
    with opened(source, config) as checkpoint:
        batch = checkpoint.batch(torch.float64)
        scales = _norms(checkpoint)
    if norms == "fold":
        batch = fold_norms(batch, scales)
    batch = for_layers(batch, biases=biases)
    return NetBatch(keep_norms(batch, scales) if norms == "keep" else batch).to(dtype)


def _norms(checkpoint: Checkpoint) -> list[Norms]:
    """Of each half the norms that the blocks read."""
    found = [
        [checkpoint.norm(name) for name in checkpoint.reading_norms(number)]
        for number in range(checkpoint.blocks)
    ]
    return [
        Norms(*(torch.stack(parts).unsqueeze(0) for parts in zip(*of_half, strict=True)))
        for of_half in zip(*found, strict=True)
    ]


@dataclass(frozen=True)
class StateDictReader:
    """Reads a safetensors file with the state dict of a network of your own.

    The attributes are the arguments of `NetBatch.from_state_dicts`.
    """

    heads: int
    activation: str
    post_norm: bool
    layout: Layout = TORCH_ENCODER
    norms: NormChoice = "fold"
    prefix: str = ""
    embedding: str | None = None
    classifier: str | None = None
    dtype: torch.dtype = torch.float32

    def __call__(self, path: str | Path) -> NetBatch:
        """One network."""
        with TensorFiles(path) as files:
            state = {name: files.read(name) for name in files}
        return NetBatch.from_state_dicts([state], **vars(self))
