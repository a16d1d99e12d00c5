"""A small network that reads adapters and does not see the basis between A and B."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.adapters.block import LORA
from transformer_nfn.adapters.netshape import AdapterNetShape
from transformer_nfn.adapters.spectrum import singular_values, soft_ranks
from transformer_nfn.layers import EquivariantLayer, InvariantLayer, seeded_linear
from transformer_nfn.space import BlockSpec, WeightBatch

#: Thresholds of soft ranks, as parts of the norm of a usual update of the module.
_THRESHOLDS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)


class AdapterNet(nn.Module):
    """Equivariant layer, invariant layer and soft ranks for each shape of modules; then an MLP.

    Both layers are linear in A and in B, so what the invariant layer gives is linear in the updates
    A B: numbers ⟨W, A B⟩ with learned W. What several channels add is that W is no sum of `rank`
    products. Soft ranks of the updates say what no linear map sees.

    Args:
        shape: Its sizes.
        generator: The source of its initial parameters; torch's global one if not given.
    """

    scales: Float[Tensor, " modules"]
    usual: Float[Tensor, "2 counts"]

    def __init__(self, shape: AdapterNetShape, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.mixing, self.reading = nn.ModuleList(), nn.ModuleList()  # mixing may stay empty
        for x, y, r, blocks in shape.sizes:
            spec = BlockSpec(LORA, D_x=x, D_y=y, rank=r)
            common: dict[str, Any] = {"blocks": blocks, "rank": shape.rank, "generator": generator}
            c, e = shape.channels, shape.features
            if c:
                self.mixing.append(EquivariantLayer(spec, inputs=1, outputs=c, **common))
            self.reading.append(InvariantLayer(spec, inputs=c or 1, outputs=e, **common))
        modules = sum(shape.modules)
        counts = modules * len(_THRESHOLDS) * shape.spectrum
        # Of training data: root mean square of each module's update; mean and spread of soft ranks.
        self.register_buffer("scales", torch.ones(modules))
        self.register_buffer("usual", torch.tensor([[0.0], [1.0]]).repeat(1, counts))
        self.norm = nn.LayerNorm(modules * shape.features)
        self.head = nn.Sequential(
            seeded_linear(modules * shape.features + counts, shape.hidden, generator),
            nn.ReLU(),
            seeded_linear(shape.hidden, shape.outputs, generator),
        )

    @torch.no_grad()
    def calibrate(self, batches: Sequence[WeightBatch]) -> None:
        """Take the size of updates and of soft ranks from training data.

        One number for each module commutes with the group, and these are invariant themselves.
        """
        sizes = []
        for batch, (x, y, *_) in zip(batches, self.shape.sizes, strict=True):
            squares = singular_values(batch).square().sum(-1).mean(dim=(0, 1))  # l
            sizes.append((squares / (x * y)).sqrt())
        found = torch.cat(sizes)
        self.scales.copy_(torch.where(found > 0, found, 1.0))
        if self.shape.spectrum:
            counts = self._soft_ranks(self._scaled(batches))
            self.usual.copy_(torch.stack([counts.mean(0), counts.std(0, correction=0) + 0.01]))

    def forward(self, batches: Sequence[WeightBatch]) -> Float[Tensor, "n outputs"]:
        """Those of a collection, in its order."""
        scaled = self._scaled(batches)
        mixed = [mix(batch) for mix, batch in zip(self.mixing, scaled, strict=False)] or scaled
        pairs = zip(self.reading, mixed, strict=True)
        seen = self.norm(torch.cat([read(batch).flatten(1) for read, batch in pairs], dim=1))
        if self.shape.spectrum:
            mean, spread = self.usual
            seen = torch.cat([seen, (self._soft_ranks(scaled) - mean) / spread], dim=1)
        out: Tensor = self.head(seen)
        return out

    def _scaled(self, batches: Sequence[WeightBatch]) -> list[WeightBatch]:
        """With updates whose entries are of size 1, as layers expect them."""
        pairs = zip(batches, torch.split(self.scales, self.shape.modules), strict=True)
        return [b.replace({"B": b["B"] / scale[:, None, None]}) for b, scale in pairs]

    def _soft_ranks(self, batches: Sequence[WeightBatch]) -> Float[Tensor, "n counts"]:
        parts = self.scales.new_tensor(_THRESHOLDS)
        pairs = zip(batches, self.shape.sizes, strict=True)
        found = [soft_ranks(batch, parts * (x * y) ** 0.5) for batch, (x, y, *_) in pairs]
        return torch.cat([counts.flatten(1) for counts in found], dim=1)
