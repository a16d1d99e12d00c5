"""The equivariant layer: weights of c channels to weights of e channels."""

from collections.abc import Mapping

import torch
from torch import Tensor

from transformer_nfn.layers.budget import DEFAULT_BUDGET
from transformer_nfn.layers.rowlayer import RowLayer
from transformer_nfn.layers.rows import equivariant_rows
from transformer_nfn.space import BlockSpec, WeightBatch


def pointwise_relu(batch: WeightBatch) -> WeightBatch:
    """ReLU on the tensors without a linear axis, the MLP part: elsewhere it is not equivariant."""
    return batch.replace({name: batch[name].relu() for name in batch.spec.block.pointwise})


class EquivariantLayer(RowLayer):
    """E: U^c -> U^e with E(gU) = g E(U) (Theorem "equivariant layer", final formula).

    Examples:
        >>> import torch
        >>> from transformer_nfn.layers import EquivariantLayer
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
        >>> layer = EquivariantLayer(spec, blocks=2, inputs=1, outputs=10)
        >>> layer.parameter_count
        1567640
        >>> layer(WeightBatch.random(spec, networks=3, blocks=2, generator=torch.manual_seed(0)))
        WeightBatch(n=3, c=10, l=2, BlockSpec(paper, D=32, heads=2, D_k=16, D_v=16, D_A=64))

    Args:
        spec: The declared block and its sizes.
        blocks: l, how many blocks a network has; each has parameters of its own.
        inputs: c, the channels that come in.
        outputs: e, the channels that go out.
        relu: Apply ReLU to the tensors without a linear axis, as the paper does after each layer.
        rank: R, write every parameter with two or more free axes as a sum of R products: then the
            layer grows with D, not with D³. None is the theorem's layer.
        max_parameters: Refuse a layer with more.
        generator: The source of its initial parameters; seed 0 if not given.
    """

    def __init__(
        self,
        spec: BlockSpec,
        *,
        blocks: int,
        inputs: int,
        outputs: int,
        relu: bool = False,
        rank: int | None = None,
        max_parameters: int = DEFAULT_BUDGET,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            equivariant_rows(spec.block),
            spec,
            spec.size,
            blocks=blocks,
            inputs=inputs,
            outputs=outputs,
            rank=rank,
            max_parameters=max_parameters,
            generator=generator or torch.Generator().manual_seed(0),
        )
        self.relu = relu

    def forward(
        self, batch: WeightBatch, parameters: Mapping[str, Tensor] | None = None
    ) -> WeightBatch:
        """Run the plan; with one of `by_block` for one block."""
        relu = self.spec.block.pointwise if self.relu else ()
        return WeightBatch(self.spec, self._run_plan(batch, parameters, relu))

    def reference(self, batch: WeightBatch) -> WeightBatch:
        """The same by a loop over the rows."""
        out = WeightBatch(self.spec, self._run_reference(batch))
        return pointwise_relu(out) if self.relu else out
