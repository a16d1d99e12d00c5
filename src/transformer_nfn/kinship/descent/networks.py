"""What of a file is compared: its blocks by views of their units, and what writes the stream."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.kinship.descent.units import View, views


@dataclass(frozen=True)
class Network:
    """One network of a file; an encoder is one of its own.

    Attributes:
        name: "network", or "encoder" and "decoder".
        blocks: How many.
        views: The units of each block.
        tensors: Of a block, by name, in float32, with the axes that the views mean.
        tables: What writes into the stream before the first block, by name: "r x".
        eps: Of the coarsest dtype that its blocks are stored in.
    """

    name: str
    blocks: int
    views: tuple[View, ...]
    tensors: Callable[[int], Mapping[str, Tensor]]
    tables: Mapping[str, Callable[[], Tensor]]
    eps: float


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

    writers = {name: writer.axes.split() for name, writer in checkpoint.writers.items()}
    return Network(
        name,
        checkpoint.blocks,
        tuple(views(checkpoint.spec)),
        tensors,
        {name: table(name, axes) for name, axes in writers.items() if len(axes) > 1},
        torch.finfo(checkpoint.dtype).eps,
    )
