"""A symmetry of a whole network: bases of its streams, an element for each block, and gauges."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.group import GroupElement
from transformer_nfn.identity.elements.canonical import Gauge, Norm
from transformer_nfn.space import BlockSpec, Kind

#: Stands for the stream of the encoder among those of a decoder.
MEMORY = -1


@dataclass(frozen=True)
class Outside:
    """Gauge of what stands outside the blocks, in the coordinates of the target.

    Attributes:
        last_norm: Scale and shift of the norm before the heads.
        ones: For each writer and head its coefficients along the vector of ones.
        untied: Heads get a tensor of their own.
    """

    last_norm: Norm
    ones: Mapping[str, Tensor]
    untied: bool


@dataclass(frozen=True)
class NetElement:
    """What turns one checkpoint into another of the same function.

    Attributes:
        bases: For each stream the orthogonal R that its tokens are multiplied with from the right;
            streams that are not named keep theirs. A network with skip connections has one
            stream, 0; in the paper's nets each LayerNorm has its own.
        blocks: For each block an element of its declared group.
        gauges: For each block the target's gauge; None keeps the block's own, moved along.
        outside: The target's gauge outside the blocks; None keeps it.
        hidden: Permutation and positive scales of the hidden neurons of a zoo net's classifier.
        encoder: The same of the network whose last stream the blocks read as well.
        unseen: Where LayerNorms became RMSNorms: the direction that was the ones. The gauges'
            coefficients along the ones are along it.
    """

    blocks: tuple[GroupElement, ...]
    bases: Mapping[int, Tensor] = field(default_factory=dict)
    gauges: tuple[Gauge | None, ...] = ()
    outside: Outside | None = None
    hidden: tuple[Tensor, Tensor] | None = None
    unseen: Tensor | None = None
    encoder: "NetElement | None" = None

    def basis(self, stream: int) -> Tensor | None:
        """Of a stream, or of that of the encoder; None is the identity."""
        if stream != MEMORY:
            return self.bases.get(stream)
        return self.encoder.basis(0) if self.encoder is not None else None

    @staticmethod
    def identity(spec: BlockSpec, blocks: int) -> "NetElement":
        """What changes nothing."""
        return NetElement((GroupElement.identity(spec),) * blocks, gauges=(None,) * blocks)

    def condition(self) -> float:
        """The largest condition number among its matrices, and ratio among its scales."""
        worst = 1.0
        for element in self.blocks:
            for label, part in element.parts.items():
                if not part.is_floating_point():
                    continue
                kind = element.spec.block.axes[label].kind
                if kind is Kind.LINEAR and part.shape[-1] > 1:
                    worst = max(worst, torch.linalg.cond(part).max().item())
                elif kind is Kind.ROTARY:
                    size = part.norm(dim=-1)
                    worst = max(worst, (size.amax(-1) / size.amin(-1)).max().item())
        return worst


def streams(checkpoint: Checkpoint, number: int) -> tuple[int, ...]:
    """The streams that the halves of a block read, in order, and the one the last of them writes.

    After them the encoder's, if there is one. Where what is written takes the place of what was
    read each is one of its own.
    """
    halves = len(checkpoint.spec.block.halves)
    if checkpoint.skip:
        return (0,) * (halves + 1) + ((MEMORY,) if checkpoint.encoder is not None else ())
    return tuple(range(halves * number, halves * (number + 1) + 1))


def last_stream(checkpoint: Checkpoint) -> int:
    """The stream that the heads read."""
    return 0 if checkpoint.skip else streams(checkpoint, checkpoint.blocks - 1)[-1]
