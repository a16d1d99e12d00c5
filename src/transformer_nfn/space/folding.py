"""Scales and shifts of norms: folded into the matrices that read them, or kept as tensors."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.block import Block, declare
from transformer_nfn.space.errors import ShapeError
from transformer_nfn.space.parts.half import NormPlace
from transformer_nfn.space.parts.part import STREAM
from transformer_nfn.space.spec import BlockSpec
from transformer_nfn.space.weights import WeightBatch

#: What becomes of the scales and shifts of norms.
NormChoice = Literal["fold", "keep", "drop"]


def check_choice(norms: str) -> None:
    """Refuse what is no `NormChoice`, before anything is read."""
    if norms not in get_args(NormChoice):
        raise ShapeError(f"norms are 'fold', 'keep' or 'drop', not {norms!r:.40}")


class Norms(NamedTuple):
    """Scale and shift of the norm of one half, for n networks of l blocks."""

    scale: Float[Tensor, "n l x"]
    shift: Float[Tensor, "n l x"]


def fold_norms(batch: WeightBatch, norms: Sequence[Norms]) -> WeightBatch:
    """The same networks without scales and shifts: what reads a norm takes them over.

    W becomes diag(scale) W, and shift W is added to its bias. So `apply_blocks`, whose norms have
    neither, computes what the networks do.

    Args:
        batch: The weights, composed of halves.
        norms: Of each half the norm that it reads.

    Raises:
        ShapeError: If a norm's output is the stream itself, so that skip connections carry its
            scale; or a shift has no bias to go to.
    """
    block = batch.spec.block
    if any(half.place is NormPlace.AFTER_SUM for half in block.halves):
        raise ShapeError(
            "norms that stand after the sum cannot be folded: skip connections carry their scale "
            "as well; keep them as tensors (norms='keep') or leave them out (norms='drop')"
        )
    if len(block.halves) != len(norms):
        raise ShapeError(
            f"block {block.name!r} has {len(block.halves)} halves, got norms of {len(norms)}"
        )
    tensors, D = dict(batch.tensors), batch.spec.sizes["D"]
    for name, (axis, half) in block.readers.items():
        if half < 0:
            raise ShapeError(
                f"{name} of block {block.name!r} reads the stream of another network, whose norm "
                f"is not one of its own"
            )
        lengths = [1] * tensors[name].dim()
        lengths[0], lengths[2], lengths[axis] = batch.networks, batch.blocks, D
        scale, shift = (part.to(tensors[name].dtype).view(lengths) for part in norms[half])
        weight, bias = split_bias(tensors, name, axis, D)
        added = (weight * shift).sum(axis)
        if weight is tensors[name] and f"b{name}" not in tensors and added.any():
            raise ShapeError(f"the shift of a norm needs a bias of {name}, which has none")
        join_bias(tensors, name, axis, weight * scale, bias + added)
    return batch.replace(tensors)


def keep_norms(batch: WeightBatch, norms: Sequence[Norms]) -> WeightBatch:
    """Scales and shifts as tensors of the block: scale1, shift1, scale2, …, which layers read."""
    parts = {
        f"{kind}{number + 1}": value.unsqueeze(1).to(batch.dtype)
        for number, norm in enumerate(norms)
        for kind, value in norm._asdict().items()
    }
    block = with_tensors(batch.spec.block, dict.fromkeys(parts, STREAM))
    return WeightBatch(BlockSpec(block, **batch.spec.sizes), {**batch.tensors, **parts})


def with_tensors(block: Block, tensors: Mapping[str, str]) -> Block:
    """A block with some more tensors; what it computes is not known then."""
    tables = block.tables()
    name = f"{block.name}_and_{'_'.join(tensors)}"
    return declare(name, block.axes, {**tables["tensors"], **tensors}, tables["products"])


def split_bias(
    tensors: Mapping[str, Tensor], name: str, axis: int, D: int
) -> tuple[Tensor, Tensor]:
    """A reader's weight without its bias row, and the bias; 0 where it has none."""
    tensor = tensors[name]
    if tensor.shape[axis] != D:
        return tensor.narrow(axis, 0, D), tensor.select(axis, D)
    bias = tensors.get(f"b{name}")
    return tensor, torch.zeros_like(tensor.select(axis, 0)) if bias is None else bias


def join_bias(
    tensors: dict[str, Tensor], name: str, axis: int, weight: Tensor, bias: Tensor
) -> None:
    """The inverse of `split_bias`; a bias that has no place is left out."""
    if tensors[name].shape[axis] != weight.shape[axis]:
        tensors[name] = torch.cat([weight, bias.unsqueeze(axis)], dim=axis)
        return
    tensors[name] = weight
    if f"b{name}" in tensors:
        tensors[f"b{name}"] = bias
