"""Neurons and words of a network as vectors of its stream, without what its group can change.

A neuron reads directions of the stream and writes one. In the canonical form of a block these are
the same whatever norms, scales and heads were moved to; only their order and the basis are not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import canonical_block, seen
from transformer_nfn.kinship.descent.counting import spread
from transformer_nfn.kinship.descent.networks import networks_of
from transformer_nfn.space import Kind, WeightBatch

#: Kinds of axes whose units may stand in any order; how long those of ReLU are is no matter here.
_ANY_ORDER = (Kind.PERMUTED, Kind.SCALED)
#: Rows of a table of words that a basis is found by.
_ROWS = 4096


@dataclass(frozen=True)
class Seen:
    """One network of a file; an encoder is one of its own.

    Attributes:
        name: "network", or "encoder" and "decoder".
        blocks: Of each block the neurons: what each reads and writes, of length 1.
        words: What writes words or patches into the stream, by name.
    """

    name: str
    blocks: tuple[Float[Tensor, "u s x"], ...]
    words: dict[str, Float[Tensor, "r x"]]


def networks_seen(checkpoint: Checkpoint) -> list[Seen]:
    """The networks of a checkpoint: one, or an encoder and a decoder."""
    parts = [checkpoint] if checkpoint.encoder is None else [checkpoint.encoder, checkpoint]
    return [
        Seen(
            net.name,
            tuple(neurons(canonical_block(part, number)) for number in range(part.blocks)),
            {name: seen(part, read().double()).float() for name, read in net.words.items()},
        )
        for net, part in zip(networks_of(checkpoint), parts, strict=True)
    ]


def neurons(canonical: WeightBatch) -> Float[Tensor, "u s x"]:
    """What each neuron of a block reads and writes, each of length 1; of all experts."""
    spec = canonical.spec
    block, size = spec.block, spec.sizes["D"]
    sides = []
    for name in (*block.readers, *block.writers):
        indices = [index.label for index in block.tensors[name]]
        axis = block.readers[name][0] % len(indices) if name in block.readers else len(indices) - 1
        others = [label for place, label in enumerate(indices) if place != axis]
        if "a" not in others or any(block.axes[o].kind not in _ANY_ORDER for o in others):
            continue
        rows = canonical.tensors[name][0, 0, 0].movedim(axis, -1)
        order = sorted(range(len(others)), key=lambda place: others[place])
        rows = rows.permute(*order, len(others)).reshape(-1, rows.shape[-1])[:, :size]
        sides.append(torch.nn.functional.normalize(rows.float(), dim=-1))
    return torch.stack(sides, dim=1) if sides else torch.zeros(0, 1, size)


def common_words(ours: Seen, theirs: Seen) -> tuple[Tensor, Tensor] | None:
    """Some rows of the first writer that both have, of length 1; None if there is none."""
    for name, table in ours.words.items():
        other = theirs.words.get(name)
        if other is None or other.shape[1] != table.shape[1]:
            continue
        rows = min(len(table), len(other))
        few = spread(rows, _ROWS)
        unit = torch.nn.functional.normalize
        return unit(table[few], dim=-1), unit(other[few], dim=-1)
    return None
