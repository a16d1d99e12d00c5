"""What of a file is compared: its blocks by views of their units, and what writes the stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.kinship.descent.units import View, views
from transformer_nfn.space import PatchPositions, Positions


@dataclass(frozen=True)
class Network:
    """One network of a file; an encoder is one of its own.

    Attributes:
        name: "network", or "encoder" and "decoder".
        blocks: How many.
        views: The units of each block.
        tensors: Of a block, by name, in float32, with the axes that the views mean.
        words: What writes words or patches into the stream, by name: "r x".
        positions: What writes positions into it.
        dtype: The coarsest that its blocks are stored in.
        by_formula: Whether what is added to the stream, or what it goes through, has coordinates
            that are not alike before training.
    """

    name: str
    blocks: int
    views: tuple[View, ...]
    tensors: Callable[[int], Mapping[str, Tensor]]
    words: Mapping[str, Callable[[], Tensor]]
    positions: Mapping[str, Callable[[], Tensor]]
    dtype: torch.dtype
    by_formula: bool = False


def networks_of(checkpoint: Checkpoint) -> list[Network]:
    """The networks of a checkpoint: one, or an encoder and a decoder."""
    if checkpoint.encoder is None:
        return [_network("network", checkpoint)]
    return [_network("encoder", checkpoint.encoder), _network("decoder", checkpoint)]


def _network(name: str, checkpoint: Checkpoint) -> Network:
    def tensors(number: int) -> dict[str, Tensor]:
        batch = checkpoint.block(number, torch.float32)
        return {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}

    def table(name: str, axes: list[str]) -> Callable[[], Tensor]:
        def read() -> Tensor:
            tensor = checkpoint.files.read(name).float()
            return tensor.movedim(axes.index("x"), -1).reshape(-1, checkpoint.D)

        return read

    words: dict[str, Callable[[], Tensor]] = {}
    positions: dict[str, Callable[[], Tensor]] = {}
    for step in checkpoint.family.embeddings:
        tables = positions if isinstance(step, Positions | PatchPositions) else words
        for stored, axes in step.tensors.items():
            here = checkpoint.name(stored)
            if here in checkpoint.writers and "x" in axes.split() and len(axes.split()) > 1:
                tables[stored] = table(here, axes.split())
    return Network(
        name,
        checkpoint.blocks,
        tuple(views(checkpoint.spec)),
        tensors,
        words,
        positions,
        checkpoint.dtype,
        checkpoint.family.fixed_positions
        or any(step.holds_stream for step in checkpoint.family.embeddings),
    )
