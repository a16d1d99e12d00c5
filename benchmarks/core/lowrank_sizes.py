"""What `lowrank` measures with: sizes, weights of these sizes, and models that read them.

Real weights are read by `transformer_nfn.checkpoints`, as blocks that layers can be made for. That
of MiniLM, a BERT, is "residual". That of SmolLM is "rotary" and read as "grouped", whose group is
another one: under RoPE queries and keys of a group may only be turned and scaled in the plane of
each frequency, GL(D_k) is no symmetry of theirs; a scale for each neuron, which `up` and `down` can
exchange, is one, and not declared. Norms are not read. Time and memory do not depend on all that.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.layers import HeadAwareLayer
from transformer_nfn.models import Encoder
from transformer_nfn.space import BLOCKS, BlockSpec, WeightBatch

CHANNELS = 10


# ---------------------------------------------------------------------------------------- models


def channel_passes(share: float) -> float:
    """Bytes that must pass where channels are made of all weights, in units of the weights'.

    Args:
        share: That of the weights in tensors with ReLU.
    """
    forward = 1 + 2 * CHANNELS  # weights read, channels written, and read by the last layer
    masks, gradients = share * CHANNELS, 2 * (1 - share) * CHANNELS
    return 2 * forward + masks + gradients + 1


class Model(NamedTuple):
    """A model of the benchmark.

    Attributes:
        make: A module that reads a `WeightBatch`, from the block's sizes and how many there are.
        passes: From the share of weights in tensors with ReLU, the bytes of weights and channels
            that a step must move, in units of the weights'.
        dtype: In which its matrix products are.
    """

    make: Callable[[BlockSpec, int], nn.Module]
    passes: Callable[[float], float]
    dtype: torch.dtype = torch.float32


def _encoder(spec: BlockSpec, blocks: int, *, rank: int) -> Encoder:
    generator = torch.Generator().manual_seed(0)
    return Encoder(spec, blocks=blocks, channels=(CHANNELS,), rank=rank, generator=generator)


def _head_aware(spec: BlockSpec, blocks: int) -> HeadAwareLayer:
    return HeadAwareLayer(spec, outputs=CHANNELS)


MODELS: dict[str, Model] = {
    "rank 4": Model(partial(_encoder, rank=4), channel_passes),
    "rank 8": Model(partial(_encoder, rank=8), channel_passes),
    # It makes no channels: the weights are read once, and once more in the backward pass.
    "heads": Model(_head_aware, lambda share: 2.0, torch.float64),
}


# ----------------------------------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """The sizes of a transformer.

    Attributes:
        spec: Of its blocks.
        blocks: How many.
        real: Whether `tools/real_weights.py` gets its weights.
    """

    spec: BlockSpec
    blocks: int
    real: bool = False


def _residual(D: int, heads: int) -> BlockSpec:
    head = D // heads
    return BlockSpec(BLOCKS["residual"], D=D, heads=heads, D_k=head, D_v=head, D_A=4 * D)


_GROUPED = {"groups": 3, "heads_per_group": 3, "D_k": 64, "D_v": 64}
CASES = {
    "bert-base": Case(_residual(768, heads=12), blocks=12),
    "minilm": Case(_residual(384, heads=12), blocks=6, real=True),
    "smollm": Case(BlockSpec(BLOCKS["grouped"], D=576, D_A=1536, **_GROUPED), blocks=30, real=True),
}
QUICK = {"quick": Case(_residual(64, heads=4), blocks=2)}


# --------------------------------------------------------------------------------------- weights


class Weights(NamedTuple):
    """Weights in memory, and where the same numbers stand in a file.

    Attributes:
        batch: One network.
        file: A safetensors file.
        names: The tensors in it.
    """

    batch: WeightBatch
    file: Path
    names: list[str]

    def plain_read(self) -> float:
        """The sum of all these weights, from the memory-mapped file."""
        with safe_open(self.file, framework="pt") as file:
            return float(sum(file.get_tensor(name).sum().item() for name in self.names))


def write_random(case: Case, file: Path) -> None:
    """Random weights of one network."""
    generator = torch.Generator().manual_seed(0)
    batch = WeightBatch.random(case.spec, networks=1, blocks=case.blocks, generator=generator)
    save_file({name: batch[name] * 0.02 for name in batch.tensors}, file)


def read_weights(case: Case, path: Path) -> Weights:
    """What `write_random` wrote, or a real checkpoint if it is a folder."""
    if path.is_dir():
        return _read_real(case, path)
    # Copied: what is mapped would enter memory, and the peak, only when it is first read.
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    return Weights(WeightBatch(case.spec, tensors), path, list(tensors))


def _read_real(case: Case, folder: Path) -> Weights:
    with Checkpoint(folder) as checkpoint:
        if checkpoint.dtype != torch.float32:
            raise ValueError(f"{folder} is {checkpoint.dtype}: a plain read would not be W bytes")
        blocks = [
            _as_declared(checkpoint.block(number, torch.float32), case.spec)
            for number in range(checkpoint.blocks)
        ]
        names = [
            checkpoint.block_name(number) + name
            for number in range(checkpoint.blocks)
            for matrix in checkpoint.family.matrices
            for name in (matrix.weight, matrix.bias)
            if name
        ]
        there = [name for name in names if name in checkpoint.files]
    batch = WeightBatch.cat(blocks, "blocks")
    if batch.blocks != case.blocks:
        raise ValueError(f"{folder} has {batch.blocks} blocks, the case has {case.blocks}")
    return Weights(batch, folder / "model.safetensors", there)


def _as_declared(block: WeightBatch, spec: BlockSpec) -> WeightBatch:
    """A rotary block as a grouped one: no bias rows, which must be 0, and no axis of scales."""
    if block.spec == spec:
        return block
    tensors = {}
    for name, indices in block.spec.block.tensors.items():
        labels = [index.label for index in indices]
        value = block[name]
        if "s" in labels:
            value = value.squeeze(3 + labels.index("s"))
        if "z" in labels:
            row = 3 + labels.index("z")
            last = value.shape[row] - 1
            _must_be_zero(f"the bias of {name}", value.narrow(row, last, 1))
            value = value.narrow(row, 0, last)
        if name in spec.block.tensors:
            tensors[name] = value.contiguous()
        else:
            _must_be_zero(name, value)
    return WeightBatch(spec, tensors)


def _must_be_zero(name: str, tensor: Tensor) -> None:
    if tensor.any():
        raise ValueError(f"{name} is not 0, and block 'grouped' has no place for it")


def count(tensors: Iterable[Tensor]) -> int:
    """How many numbers they have."""
    return sum(tensor.numel() for tensor in tensors)
