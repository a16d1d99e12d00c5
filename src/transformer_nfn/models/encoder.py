"""The part of Transformer-NFN that reads the blocks."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers import DEFAULT_BUDGET, EquivariantLayer, InvariantLayer
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
        max_parameters: int = DEFAULT_BUDGET,
        generator: torch.Generator,
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
            max_parameters=max_parameters,
            generator=generator,
        )
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
        for layer in self.equivariant:
            batch = layer(batch)
        vectors = self.invariant(batch)  # n e l d
        normed = [
            norm(vectors[:, :, block].flatten(1)) for block, norm in enumerate(self.block_norms)
        ]
        out: Tensor = self.head(torch.cat(normed, dim=1))
        return out


def seeded_linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """`nn.Linear` with torch's own initial distribution, drawn from the given generator."""
    # Made on "meta" first: nn.Linear would draw from torch's global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=torch.get_default_device())
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
