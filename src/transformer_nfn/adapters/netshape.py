"""The sizes of a model on adapters."""

from dataclasses import dataclass
from typing import Any

from transformer_nfn.adapters.collection import AdapterCollection


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

    @property
    def modules(self) -> list[int]:
        """How many there are of each shape."""
        return [size[-1] for size in self.sizes]

    @staticmethod
    def of(collection: AdapterCollection, outputs: int, **settings: Any) -> "AdapterNetShape":
        """One for adapters like these."""
        specs = ((batch.spec.sizes, batch.blocks) for batch in collection.batches)
        sizes = tuple((s["D_x"], s["D_y"], s["rank"], blocks) for s, blocks in specs)
        return AdapterNetShape(sizes, outputs, **settings)
