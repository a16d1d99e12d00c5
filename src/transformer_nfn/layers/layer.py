"""The equivariant and the invariant layer: rows, their parameters, two ways to run them."""

from collections.abc import Collection, Mapping, Sequence
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers.budget import DEFAULT_BUDGET, check_budget
from transformer_nfn.layers.dense.plan import Plan
from transformer_nfn.layers.lowrank.steps import LowRank
from transformer_nfn.layers.reference import reference
from transformer_nfn.layers.rows import (
    CONSTANT,
    INVARIANT,
    Row,
    Sizes,
    equivariant_rows,
    invariant_rows,
)
from transformer_nfn.space import BlockSpec, ShapeError, WeightBatch


class RowLayer(nn.Module):
    """A layer made of rows; every block of the network has parameters of its own.

    One `nn.Parameter` "l F T" for each matrix of the plan, named by its target and tied axes.
    `row_parameters` gives a named view for each row. With a rank the parameters are the factors
    of each row, "l ρ axis" and "l ρ e c".
    """

    def __init__(
        self,
        rows: Sequence[Row],
        spec: BlockSpec,
        sizes: Sizes,
        *,
        blocks: int,
        inputs: int,
        outputs: int,
        rank: int | None,
        max_parameters: int,
        generator: torch.Generator | None,
    ) -> None:
        """See `EquivariantLayer` and `InvariantLayer`."""
        super().__init__()
        if min(blocks, inputs, outputs) < 1:
            raise ShapeError(
                f"a layer needs at least one block and channel, got blocks={blocks}, "
                f"inputs={inputs}, outputs={outputs}"
            )
        if rank is not None and rank < 1:
            raise ShapeError(f"rank is how many products a parameter is a sum of, got {rank}")
        if all(row.source == CONSTANT for row in rows):
            raise ShapeError(
                f"no row of this layer reads block {spec.block.name!r}: every tensor "
                f"has a linear axis; declare a product in which it is summed"
            )
        check_budget(
            rows,
            sizes,
            blocks=blocks,
            inputs=inputs,
            outputs=outputs,
            rank=rank,
            budget=max_parameters,
        )
        self.rows = tuple(rows)
        self.spec, self.blocks, self.inputs, self.outputs = spec, blocks, inputs, outputs
        self.rank = rank
        self.plan: Plan | LowRank = (
            Plan(rows, sizes, inputs, outputs)
            if rank is None
            else LowRank(rows, spec.block, sizes, inputs, outputs, rank)
        )
        self.matrices = nn.ParameterDict(
            {
                name: nn.Parameter(torch.empty(blocks, *shape))
                for name, shape in self.plan.shapes.items()
            }
        )
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start so that every row gives each target the same variance, in sum 1.

        For weights of variance 1 a row adds up `Row.fan_in` independent products, so its
        coefficients have the variance 1 / (fan_in · rows into this target). Constants start at 0.
        """
        rivals = [row.target for row in self.rows if row.source != CONSTANT]
        stored = self._stored()
        for row in self.rows:
            fan_in = row.fan_in(self.plan.sizes, self.inputs) * max(rivals.count(row.target), 1)
            if isinstance(self.plan, Plan):
                bounds = [(self.plan.row_parameter(row, stored), sqrt(3 / fan_in))]
            else:
                variances = self.plan.factors[row.name].variances(1 / fan_in)
                bounds = [(stored[name], sqrt(3 * part)) for name, part in variances.items()]
            for i, (parameter, bound) in enumerate(bounds):
                if row.source == CONSTANT and i == 0:  # of products the first is enough
                    parameter.zero_()
                else:
                    parameter.uniform_(-bound, bound, generator=generator)

    def _stored(self) -> dict[str, Tensor]:
        return dict(self.matrices.items())

    def row_parameters(self) -> dict[str, Tensor]:
        """For each row's name a view of its parameter, "l" and the axes of `Row.parameter`.

        With a rank it is no view: those of two or more free axes are multiplied out.
        """
        stored = self._stored()
        return {row.name: self.plan.row_parameter(row, stored) for row in self.rows}

    def by_block(self) -> list[dict[str, Tensor]]:
        """For each block its parameters, views with l = 1: the layer of this block alone.

        Blocks do not see each other in a layer, so that they can be run one at a time:
        ``layer(batch.select(blocks=slice(3, 4)), layer.by_block()[3])``.
        """
        views = {name: matrix.split(1) for name, matrix in self.matrices.items()}
        return [{name: view[i] for name, view in views.items()} for i in range(self.blocks)]

    def _check(self, batch: WeightBatch, blocks: int) -> None:
        if not isinstance(batch, WeightBatch):
            raise ShapeError(
                f"a layer reads a WeightBatch, such as the blocks of a NetBatch, not "
                f"{type(batch).__name__}"
            )
        wanted = (self.spec, blocks, self.inputs)
        if (batch.spec, batch.blocks, batch.channels) != wanted:
            raise ShapeError(
                f"the layer is for {blocks} blocks and {self.inputs} channels of "
                f"{self.spec}, got {batch!r}"
            )
        own = next(iter(self.matrices.values())).dtype
        if batch.dtype != own and _autocast(batch.device) is None:
            raise ShapeError(
                f"the layer computes in {own}, the weights are {batch.dtype}; use "
                f"batch.to({own}) or layer.to({batch.dtype})"
            )

    def _run_plan(
        self,
        batch: WeightBatch,
        parameters: Mapping[str, Tensor] | None,
        relu: Collection[str] = (),
    ) -> dict[str, Tensor]:
        self._check(batch, self.blocks if parameters is None else 1)
        own = self._stored() if parameters is None else parameters
        made = self.plan.run(batch, own, relu)
        dtype = _autocast(batch.device)
        if dtype is None or batch.dtype == torch.float64:  # which autocast leaves alone
            return made
        return {name: tensor.to(dtype) for name, tensor in made.items()}  # sums are float32 there

    def _run_reference(self, batch: WeightBatch) -> dict[str, Tensor]:
        self._check(batch, self.blocks)
        return reference(self.rows, batch, self.row_parameters())

    @property
    def parameter_count(self) -> int:
        """How many numbers it learns."""
        return sum(parameter.numel() for parameter in self.parameters())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.inputs} -> {self.outputs} channels, {self.blocks} blocks "
            f"of {self.spec}, {len(self.rows)} rows, "
            f"{'' if self.rank is None else f'rank {self.rank}, '}"
            f"{self.parameter_count:,} parameters)"
        )


def _autocast(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast computes in on this device, if it is on."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def pointwise_relu(batch: WeightBatch) -> WeightBatch:
    """ReLU on the tensors without a linear axis, the MLP part: elsewhere it is not equivariant."""
    return batch.replace({name: batch[name].relu() for name in batch.spec.block.pointwise})


class EquivariantLayer(RowLayer):
    """E: U^c -> U^e with E(gU) = g E(U) (Theorem "equivariant layer", final formula).

    Examples:
        >>> from transformer_nfn.layers import EquivariantLayer
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
        >>> layer = EquivariantLayer(spec, blocks=2, inputs=1, outputs=10)
        >>> layer.parameter_count
        1567640
        >>> layer(WeightBatch.random(spec, networks=3, blocks=2))
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
        generator: The source of its initial parameters; torch's global one if not given.
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
            dict(spec.lengths),
            blocks=blocks,
            inputs=inputs,
            outputs=outputs,
            rank=rank,
            max_parameters=max_parameters,
            generator=generator,
        )
        self.relu = relu

    def forward(
        self, batch: WeightBatch, parameters: Mapping[str, Tensor] | None = None
    ) -> WeightBatch:
        """Run the plan; with one of `by_block` for one block."""
        relu = self.spec.block.pointwise if self.relu else ()
        made = self._run_plan(batch, parameters, relu)
        return WeightBatch(self.spec, made)

    def reference(self, batch: WeightBatch) -> WeightBatch:
        """The same by a loop over the rows."""
        out = WeightBatch(self.spec, self._run_reference(batch))
        return pointwise_relu(out) if self.relu else out


class InvariantLayer(RowLayer):
    """I: U^c -> R^(e × D') with I(gU) = I(U) (Theorem "invariant layer", final formula).

    Examples:
        >>> from transformer_nfn.layers import InvariantLayer
        >>> from transformer_nfn.space import PAPER, BlockSpec, WeightBatch
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
        >>> layer = InvariantLayer(spec, blocks=2, inputs=1, outputs=6)
        >>> layer(WeightBatch.random(spec, networks=3, blocks=2)).shape
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
        generator: The source of its initial parameters; torch's global one if not given.
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
            {**spec.lengths, "d": width},
            blocks=blocks,
            inputs=inputs,
            outputs=outputs,
            rank=rank,
            max_parameters=max_parameters,
            generator=generator,
        )

    def forward(
        self, batch: WeightBatch, parameters: Mapping[str, Tensor] | None = None
    ) -> Float[Tensor, "n e l d"]:
        """Run the plan; with one of `by_block` for one block."""
        return self._run_plan(batch, parameters)[INVARIANT]

    def reference(self, batch: WeightBatch) -> Float[Tensor, "n e l d"]:
        """The same by a loop over the rows."""
        return self._run_reference(batch)[INVARIANT]
