"""A small network that reads adapters and does not see the basis between A and B."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.adapters.block import LORA
from transformer_nfn.adapters.collection import AdapterCollection
from transformer_nfn.adapters.spectrum import singular_values, soft_ranks
from transformer_nfn.layers import EquivariantLayer, InvariantLayer
from transformer_nfn.space import BlockSpec, WeightBatch

#: Thresholds of soft ranks, as parts of the norm of a usual update of the module.
_THRESHOLDS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.001)


@dataclass(frozen=True)
class AdapterNetShape:
    """The shape of an `AdapterNet`, in plain numbers.

    Attributes:
        sizes: For each batch of a collection inputs, outputs, rank and number of its modules.
        outputs: What it gives for each adapter, for example the logits of so many classes.
        channels: Of the equivariant layer; 0 leaves this layer out.
        features: Numbers that the invariant layer gives for each module.
        rank: R of both layers, see `InvariantLayer`; None is the full layer, for narrow modules.
        hidden: Width of the MLP.
        spectrum: Whether it also sees `soft_ranks`.
    """

    sizes: tuple[tuple[int, int, int, int], ...]
    outputs: int
    channels: int = 4
    features: int = 16
    rank: int | None = 4
    hidden: int = 64
    spectrum: bool = True

    @staticmethod
    def of(collection: AdapterCollection, outputs: int, **settings: Any) -> "AdapterNetShape":
        """One for adapters like these."""
        specs = ((batch.spec.sizes, batch.blocks) for batch in collection.batches)
        sizes = tuple((s["D_x"], s["D_y"], s["rank"], blocks) for s, blocks in specs)
        return AdapterNetShape(sizes, outputs, **settings)


class AdapterNet(nn.Module):
    """Equivariant layer, invariant layer and soft ranks for each shape of modules; then an MLP.

    Both layers are linear in A and in B, so what the invariant layer gives is linear in the updates
    A B: numbers ⟨W, A B⟩ with learned W. Soft ranks of the equivariant layer's channels add what
    no linear map sees.

    Args:
        shape: Its sizes.
        generator: The source of its initial parameters; torch's global one if not given.
    """

    scales: Float[Tensor, " modules"]

    def __init__(self, shape: AdapterNetShape, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.shape = shape
        source = torch.default_generator if generator is None else generator
        self.mixing, self.reading = nn.ModuleList(), nn.ModuleList()
        for x, y, r, blocks in shape.sizes:
            spec = BlockSpec(LORA, D_x=x, D_y=y, rank=r)
            common: dict[str, Any] = {"blocks": blocks, "rank": shape.rank, "generator": source}
            if shape.channels:
                self.mixing.append(
                    EquivariantLayer(spec, inputs=1, outputs=shape.channels, **common)
                )
            inputs = shape.channels or 1
            self.reading.append(
                InvariantLayer(spec, inputs=inputs, outputs=shape.features, **common)
            )
        modules = sum(size[-1] for size in shape.sizes)
        # The root mean square of the entries of each module's update.
        self.register_buffer("scales", torch.ones(modules))
        counts = len(_THRESHOLDS) * (shape.channels or 1) if shape.spectrum else 0
        width = modules * (shape.features + counts)
        self.head = nn.Sequential(
            nn.LayerNorm(width),
            _linear(width, shape.hidden, source),
            nn.ReLU(),
            _linear(shape.hidden, shape.outputs, source),
        )

    @torch.no_grad()
    def calibrate(self, batches: Sequence[WeightBatch]) -> None:
        """Take the size of each module's updates from training data.

        One number for each module commutes with the group, and that of A B is invariant itself.
        """
        sizes = []
        for batch, (x, y, *_) in zip(batches, self.shape.sizes, strict=True):
            norms = singular_values(batch).square().sum(-1)  # n c l
            sizes.append((norms.mean(dim=(0, 1)) / (x * y)).sqrt())
        found = torch.cat(sizes)
        self.scales.copy_(torch.where(found > 0, found, 1.0))

    def forward(self, batches: Sequence[WeightBatch]) -> Float[Tensor, "n outputs"]:
        """Those of a collection, in its order."""
        found: list[Tensor] = []
        scales = torch.split(self.scales, [size[-1] for size in self.shape.sizes])
        for number, (batch, scale) in enumerate(zip(batches, scales, strict=True)):
            x, y, *_ = self.shape.sizes[number]
            batch = batch.replace({"B": batch["B"] / scale[:, None, None]})
            if self.shape.channels:
                batch = self.mixing[number](batch)
            found.append(self.reading[number](batch).flatten(1))
            if self.shape.spectrum:
                thresholds = torch.tensor(_THRESHOLDS, device=scale.device) * (x * y) ** 0.5
                found.append(soft_ranks(batch, thresholds).flatten(1))
        out: Tensor = self.head(torch.cat(found, dim=1))
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are built again from plain numbers, whatever its layers hold."""
        fixed = [name for name, p in self.named_parameters() if not p.requires_grad]
        return _again, (self.shape, dict(self.state_dict()), self.training, fixed)


def _again(
    shape: AdapterNetShape, state: dict[str, Tensor], training: bool, fixed: list[str]
) -> AdapterNet:
    net = AdapterNet(shape, torch.Generator().manual_seed(0))
    net.load_state_dict(state, assign=True)
    for name in fixed:
        net.get_parameter(name).requires_grad_(False)
    return net.train(training)


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """`nn.Linear` with torch's own initial distribution, drawn from a generator."""
    # Made on "meta" first: nn.Linear would draw from torch's global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=torch.get_default_device())
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
    return layer
