"""What a checkpoint is: sizes, symmetries, and the health of its heads and neurons."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.heads import Heads
from transformer_nfn.identity.comparing.units import as_complex
from transformer_nfn.identity.elements.acting import canonical_block, reading
from transformer_nfn.identity.elements.parts import symmetry_parts
from transformer_nfn.space import WeightBatch

#: Below this part of the largest, a singular value or a neuron counts as nothing.
_NOTHING = 1e-6


@dataclass(frozen=True)
class BlockHealth:
    """One block.

    Attributes:
        qk_rank: Smallest rank of Q Kᵀ among its heads, as a part of D_k (pairs under RoPE).
        qk_condition: Largest condition number of Q Kᵀ on that rank.
        vo_rank: Smallest rank of V O.
        vo_condition: Largest condition number of V O.
        dead_neurons: Neurons that read or write nothing.
        not_finite: NaN and infinite numbers.
    """

    qk_rank: int
    qk_condition: float
    vo_rank: int
    vo_condition: float
    dead_neurons: int
    not_finite: int


@dataclass(frozen=True)
class Inspection:
    """What `tnfn inspect` shows."""

    family: str
    parameters: int
    dtype: str
    blocks: int
    sizes: dict[str, int]
    settings: dict[str, object]
    heads: list[str]
    unknown: list[str]
    group: dict[str, int]
    health: list[BlockHealth]
    not_finite: dict[str, int]

    @property
    def dimension(self) -> int:
        """Of the symmetry group."""
        return sum(self.group.values())


def inspect_checkpoint(
    checkpoint: Checkpoint, progress: Callable[[int], None] = lambda _: None
) -> Inspection:
    """Read a checkpoint once, block by block, and say what it is.

    Args:
        checkpoint: An open checkpoint.
        progress: Called with the number of blocks that were looked at.
    """
    health = []
    for number in range(checkpoint.blocks):
        health.append(_health(checkpoint, number))
        progress(number + 1)
    settings = checkpoint.settings
    place = "after each sum" if checkpoint.post_norm else "before each half"
    blocks = range(checkpoint.blocks)
    inside = {name for number in blocks for name in checkpoint.matrix_names(number)}
    return Inspection(
        family=checkpoint.family.name,
        parameters=sum(prod(entry.shape) for entry in checkpoint.files.entries.values()),
        dtype=str(checkpoint.dtype).removeprefix("torch."),
        blocks=checkpoint.blocks,
        sizes=dict(checkpoint.spec.sizes),
        settings={
            "activation": settings.activation,
            "norms": f"{settings.norm}, {place}",
            "eps": settings.eps,
            "depth": settings.depth,
            "rope": None
            if settings.rope is None
            else f"{settings.rope.kind} {settings.rope.theta:g}",
            "tied": any(head.tied for head in checkpoint.heads.values())
            or bool(checkpoint.tied_decoder),
        },
        heads=[*checkpoint.heads, *checkpoint.pooled_heads]
        or (["classifier"] if checkpoint.hidden_head else []),
        unknown=checkpoint.unknown,
        group=symmetry_parts(checkpoint),
        health=health,
        not_finite={
            name: bad
            for name in checkpoint.files
            if name not in inside and (bad := _count_not_finite(checkpoint, name))
        },
    )


def _health(checkpoint: Checkpoint, number: int) -> BlockHealth:
    raw = checkpoint.block(number)
    bad = sum(int((~torch.isfinite(raw[name])).sum()) for name in raw.tensors)
    norms = torch.cat([part for norm in reading(checkpoint, number) for part in norm])
    if bad or not torch.isfinite(norms).all():
        nan = float("nan")
        return BlockHealth(0, nan, 0, nan, 0, bad)
    block = canonical_block(checkpoint, number)
    looks, values = [], []
    for part in block.spec.block.attentions:
        heads = Heads.of(block, part)
        looks.append(
            _pair_sizes(heads) if heads.rotary else _singular(heads.Q, heads.K.unsqueeze(1))
        )
        values.append(_singular(heads.V.unsqueeze(1), heads.O.mT))
    (qk_rank, qk_condition), (vo_rank, vo_condition) = (
        _rank(torch.cat(found)) for found in (looks, values)
    )
    return BlockHealth(qk_rank, qk_condition, vo_rank, vo_condition, _dead(block), 0)


def _singular(left: Tensor, right: Tensor) -> Tensor:
    """Singular values of left · rightᵀ, from the small triangles of both."""
    a, b = (torch.linalg.qr(side, mode="r").R for side in (left, right))
    values: Tensor = torch.linalg.svdvals(a @ b.mT)
    return values


def _pair_sizes(heads: Heads) -> Tensor:
    """Under RoPE each pair of coordinates is a form of its own, q k*, of this size."""
    q, k = as_complex(heads.Q).norm(dim=-2), as_complex(heads.K).norm(dim=-2)
    sizes: Tensor = (q * k.unsqueeze(1)).sort(dim=-1, descending=True).values
    return sizes


def _rank(values: Tensor) -> tuple[int, float]:
    """The smallest rank of all heads, and the largest condition number on a head's rank."""
    top = values.amax(dim=-1, keepdim=True)
    there = (values > _NOTHING * top) & (top > 0)
    smallest = torch.where(there, values, torch.inf).amin(dim=-1)
    condition = (top[..., 0] / smallest).nan_to_num(nan=1.0)
    return int(there.sum(dim=-1).min()), condition.max().item()


def _dead(block: WeightBatch) -> int:
    """Neurons whose input or output weights are nothing beside those of the others."""
    declared = block.spec.block
    dead = torch.zeros((), dtype=torch.bool)
    for name in (*declared.readers, *declared.writers):
        labels = [index.label for index in declared.tensors[name]]
        inner = [axis for axis, label in enumerate(labels) if label not in ("u", "a")]
        if "a" in labels and inner:
            size = block[name][0, 0, 0].square().sum(dim=inner).sqrt()
            dead = dead | (size <= _NOTHING * size.square().mean().sqrt())
    return int(dead.sum())


def _count_not_finite(checkpoint: Checkpoint, name: str) -> int:
    entry = checkpoint.files.entry(name)
    if not entry.dtype.is_floating_point or not entry.shape:
        return 0
    rows = max(1, 2**22 // max(1, entry.shape[-1]))
    return sum(int((~torch.isfinite(c)).sum()) for c in checkpoint.files.chunks(name, rows))
