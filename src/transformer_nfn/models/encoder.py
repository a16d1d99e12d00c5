"""The part of Transformer-NFN that reads the blocks."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers import (
    DEFAULT_BUDGET,
    EquivariantLayer,
    InvariantLayer,
    recomputed,
    seeded_linear,
)
from transformer_nfn.space import BlockSpec, WeightBatch


class Encoder(nn.Module):
    """Equivariant layers with ReLU, the invariant layer, and an MLP on what it gives.

    The invariant vectors of each block pass a LayerNorm of their own, are put side by side, pass
    another, and go through Linear-LayerNorm-ReLU twice and a last Linear.

    Args:
        spec: The declared block and its sizes.
        blocks: l, how many blocks a network has.
        channels: Output channels of the equivariant layers, one number each.
        width: The paper's D'.
        hidden: Width of the MLP and of its output.
        rank: R of all layers; None is the paper's.
        recompute: Run block by block, and keep nothing of a block for the backward pass but its
            weights: it is run a second time then. Channels of one block are the most that is ever
            in memory. By default where there is a rank.
        max_parameters: Refuse a layer with more.
        generator: The source of initial parameters.
    """

    def __init__(
        self,
        spec: BlockSpec,
        *,
        blocks: int,
        channels: Sequence[int],
        width: int = 1,
        hidden: int = 10,
        rank: int | None = None,
        recompute: bool | None = None,
        max_parameters: int = DEFAULT_BUDGET,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if not channels:
            raise ValueError("channels is empty; name at least one equivariant layer, e.g. [10]")
        self.equivariant = nn.ModuleList(
            EquivariantLayer(
                spec,
                blocks=blocks,
                inputs=inputs,
                outputs=outputs,
                relu=True,
                rank=rank,
                max_parameters=max_parameters,
                generator=generator,
            )
            for inputs, outputs in zip([1, *channels], channels, strict=False)
        )
        self.invariant = InvariantLayer(
            spec,
            blocks=blocks,
            inputs=channels[-1],
            outputs=channels[-1],
            width=width,
            rank=rank,
            max_parameters=max_parameters,
            generator=generator,
        )
        self.recompute = rank is not None if recompute is None else recompute
        each = channels[-1] * width
        self.block_norms = nn.ModuleList(nn.LayerNorm(each) for _ in range(blocks))
        self.head = nn.Sequential(
            nn.LayerNorm(blocks * each),
            seeded_linear(blocks * each, hidden, generator),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            seeded_linear(hidden, hidden, generator),
            nn.LayerNorm(hidden),
            nn.ReLU(),
            seeded_linear(hidden, hidden, generator),
        )

    def forward(self, batch: WeightBatch) -> Float[Tensor, "n hidden"]:
        """A vector for each network that no group element can change."""
        if self.recompute and batch.blocks == len(self.block_norms):
            vectors = self._block_by_block(batch)  # n e l d
        else:
            vectors = self._run(batch)
        normed = [
            norm(vectors[:, :, block].flatten(1)) for block, norm in enumerate(self.block_norms)
        ]
        out: Tensor = self.head(torch.cat(normed, dim=1))
        return out

    def _run(
        self, batch: WeightBatch, parameters: Sequence[Mapping[str, Tensor]] | None = None
    ) -> Float[Tensor, "n e l d"]:
        """All layers up to the invariant one; `parameters` has for each those of one block."""
        own: Sequence[Mapping[str, Tensor] | None]
        own = parameters or [None] * (1 + len(self.equivariant))
        for layer, some in zip(self.equivariant, own, strict=False):
            batch = layer(batch, some)
        out: Tensor = self.invariant(batch, own[-1])
        return out

    def _block_by_block(self, batch: WeightBatch) -> Float[Tensor, "n e l d"]:
        layers = [layer.by_block() for layer in (*self.equivariant, self.invariant)]
        vectors = []
        for block in range(batch.blocks):
            weights = batch.select(blocks=slice(block, block + 1))
            parameters = [layer[block] for layer in layers]
            vectors.append(recomputed(self._run, weights, parameters))
        return torch.cat(vectors, dim=2)
