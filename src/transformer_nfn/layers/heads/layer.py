"""A layer that reads heads and neurons one by one: it knows which Q Kᵀ belongs to which V O."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers.heads.messages import Messages, NodeEncoder, Standardised, pooled
from transformer_nfn.layers.heads.seeded import seeded_linear
from transformer_nfn.layers.heads.units import check_units, units_of
from transformer_nfn.layers.heads.values import (
    head_to_neuron_values,
    head_values,
    neuron_values,
    row_to_head_values,
)
from transformer_nfn.layers.recomputing import recomputed
from transformer_nfn.space import BlockSpec, WeightBatch

#: What is read of a block, and of the neurons of the block before it.
_PARTS = ("heads", "neurons", "heads_to_neurons", "neurons_before", "neurons_before_to_heads")


class HeadAwareLayer(nn.Module):
    """A vector for each block that the group does not change; ours, not the paper's.

    The paper's layers sum Q Kᵀ and V O over the heads before anything else, so networks that
    exchange the V O of two heads look alike to them. Here each head and each neuron becomes a few
    invariant numbers (see `head_values` and the like), then a learned state. Neurons of the block
    before send messages to the heads, heads and neurons to each other, along edges that say how
    much of one the other reads. Only then they are pooled. All blocks share the parameters.

    Block by block, in float64 up to the numbers: forward and backward take the memory of two
    blocks in float64, and four products of the size D · D · D_A a block.

    Examples:
        >>> import torch
        >>> from transformer_nfn.layers import HeadAwareLayer
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
        >>> layer = HeadAwareLayer(spec, outputs=6)
        >>> layer(
        ...     WeightBatch.random(spec, networks=3, blocks=2, generator=torch.manual_seed(0))
        ... ).shape
        torch.Size([3, 2, 6])

    Args:
        spec: The declared block and its sizes.
        outputs: e, numbers for each block.
        width: Of the state of a head or neuron.
        generator: The source of its initial parameters; torch's global one if not given.

    Raises:
        ShapeError: If the block has no heads Q, K, V, O or no neurons.
    """

    def __init__(
        self,
        spec: BlockSpec,
        *,
        outputs: int,
        width: int = 16,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        check_units(spec)
        numbers = _numbers(spec)
        self.standardised = nn.ModuleDict({part: Standardised(numbers[part]) for part in _PARTS})
        self.encoders = nn.ModuleDict(
            {
                part: NodeEncoder(numbers[part], width, generator)
                for part in _PARTS
                if "_to_" not in part
            }
        )
        self.messages = nn.ModuleDict(
            {
                part: Messages(numbers[part], width, generator)
                for part in ("neurons_before_to_heads", "heads_to_neurons")
            }
        )
        self.head = seeded_linear(9 * width, outputs, generator)

    def learn_scales(self, batch: WeightBatch) -> None:
        """Take mean and deviation of all numbers from these networks, e.g. those to learn from."""
        with torch.no_grad():
            values = [_values(part) for part in _by_block(batch)]
        for part, module in self.standardised.items():
            assert isinstance(module, Standardised)
            some = [one[part].flatten(1, -2) for one in values if part in one]
            if some:
                module.learn(torch.cat(some, dim=1))

    def forward(self, batch: WeightBatch) -> Float[Tensor, "n l e"]:
        """A vector for each block of each network.

        Raises:
            ShapeError: If the weights have more than one channel.
        """
        return torch.stack([recomputed(self._read, part) for part in _by_block(batch)], dim=1)

    def _read(self, part: WeightBatch) -> Float[Tensor, "n e"]:
        """The last block of one or two, after the neurons of the first."""
        numbers = {name: self.standardised[name](value) for name, value in _values(part).items()}
        nodes = {
            name: encoder(numbers[name])
            for name, encoder in self.encoders.items()
            if name in numbers
        }
        heads, neurons = nodes["heads"], nodes["neurons"]
        before = heads.new_zeros(len(heads), 1, heads.shape[2])  # of the first block: nothing
        if "neurons_before" in nodes:
            edges = numbers["neurons_before_to_heads"]
            before, heads = self.messages["neurons_before_to_heads"](
                nodes["neurons_before"], heads, edges
            )
        edges = numbers["heads_to_neurons"]
        heads, neurons = self.messages["heads_to_neurons"](heads, neurons, edges)
        states = [pooled(states) for states in (before, heads, neurons)]
        out: Tensor = self.head(torch.cat(states, dim=-1))
        return out


def _by_block(batch: WeightBatch) -> Iterator[WeightBatch]:
    """Each block, after the one before it."""
    for block in range(batch.blocks):
        yield batch.select(blocks=slice(max(0, block - 1), block + 1))


def _values(part: WeightBatch) -> dict[str, Tensor]:
    """The numbers of the last block, and how it reads the neurons of the one before."""
    units = units_of(part, part.blocks - 1)
    found = {
        "heads": head_values(units),
        "neurons": neuron_values(units),
        "heads_to_neurons": head_to_neuron_values(units),
    }
    if part.blocks == 2:
        before = units_of(part, 0)
        found["neurons_before"] = neuron_values(before)
        found["neurons_before_to_heads"] = row_to_head_values(before.writer, units)
    return found


def _numbers(spec: BlockSpec) -> dict[str, int]:
    """How many numbers each part has, from the smallest block of the kind."""
    with torch.device("cpu"):  # the layer may be made on "meta"
        small = WeightBatch.random(
            BlockSpec(spec.block, **dict.fromkeys(spec.sizes, 2)),
            networks=1,
            blocks=2,
            generator=torch.Generator().manual_seed(0),
        )
    return {name: value.shape[-1] for name, value in _values(small).items()}
