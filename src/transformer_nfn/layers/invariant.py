"""The invariant layer: weights of c channels to e vectors of D' numbers for each block."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.layers.budget import DEFAULT_BUDGET
from transformer_nfn.layers.rowlayer import RowLayer
from transformer_nfn.layers.rows import INVARIANT, invariant_rows
from transformer_nfn.space import BlockSpec, WeightBatch


class InvariantLayer(RowLayer):
    """I: U^c -> R^(e × D') with I(gU) = I(U) (Theorem "invariant layer", final formula).

    Examples:
        >>> import torch
        >>> from transformer_nfn.layers import InvariantLayer
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
        >>> layer = InvariantLayer(spec, blocks=2, inputs=1, outputs=6)
        >>> layer(
        ...     WeightBatch.random(spec, networks=3, blocks=2, generator=torch.manual_seed(0))
        ... ).shape
        torch.Size([3, 6, 2, 1])

    Args:
        spec: The declared block and its sizes.
        blocks: l, how many blocks a network has; each has parameters of its own.
        inputs: c, the channels that come in.
        outputs: e, the channels that go out.
        width: The paper's D', numbers for each channel.
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
        width: int = 1,
        rank: int | None = None,
        max_parameters: int = DEFAULT_BUDGET,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            invariant_rows(spec.block),
            spec,
            lambda label: width if label == "d" else spec.size(label),
            blocks=blocks,
            inputs=inputs,
            outputs=outputs,
            rank=rank,
            max_parameters=max_parameters,
            generator=generator or torch.Generator().manual_seed(0),
        )

    def forward(
        self, batch: WeightBatch, parameters: Mapping[str, Tensor] | None = None
    ) -> Float[Tensor, "n e l d"]:
        """Run the plan; with one of `by_block` for one block."""
        return self._run_plan(batch, parameters)[INVARIANT]

    def reference(self, batch: WeightBatch) -> Float[Tensor, "n e l d"]:
        """The same by a loop over the rows."""
        return self._run_reference(batch)[INVARIANT]
