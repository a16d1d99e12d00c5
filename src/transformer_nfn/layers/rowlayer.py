"""What both layers share: rows, their parameters, two ways to run them."""

from collections.abc import Collection, Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from transformer_nfn.layers.budget import check_budget
from transformer_nfn.layers.plan import Plan, matrix_name
from transformer_nfn.layers.reference import reference
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes
from transformer_nfn.space import BlockSpec, ShapeError, WeightBatch


class RowLayer(nn.Module):
    """A layer made of rows; every block of the network has parameters of its own.

    One `nn.Parameter` "l F T" for each matrix of the plan, named by its target and tied axes.
    `row_parameters` gives a named view for each row.
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
        max_parameters: int,
        generator: torch.Generator,
    ) -> None:
        """See `EquivariantLayer` and `InvariantLayer`."""
        super().__init__()
        if min(blocks, inputs, outputs) < 1:
            raise ShapeError(
                f"a layer needs at least one block and channel, got blocks={blocks}, "
                f"inputs={inputs}, outputs={outputs}"
            )
        if all(row.source == CONSTANT for row in rows):
            raise ShapeError(
                f"no row of this layer reads block {spec.block.name!r}: every tensor "
                f"has a linear axis; declare a product in which it is summed"
            )
        check_budget(
            rows, sizes, blocks=blocks, inputs=inputs, outputs=outputs, budget=max_parameters
        )
        self.rows = tuple(rows)
        self.spec, self.blocks, self.inputs, self.outputs = spec, blocks, inputs, outputs
        self.plan = Plan(rows, sizes, inputs, outputs)
        self.matrices = nn.ParameterDict(
            {
                name: nn.Parameter(torch.empty(blocks, *self.plan.matrix_shape(name)))
                for name in self.plan.matrices
            }
        )
        self.reset_parameters(generator)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator) -> None:
        """Start so that every row gives each target the same variance, in sum 1.

        For weights of variance 1 a row adds up `Row.fan_in` independent products, so its
        coefficients have the variance 1 / (fan_in · rows into this target). Constants start at 0.
        """
        rivals = [row.target for row in self.rows if row.source != CONSTANT]
        for row, parameter in zip(self.rows, self.row_parameters().values(), strict=True):
            if row.source == CONSTANT:
                parameter.zero_()
            else:
                fan_in = row.fan_in(self.plan.sizes, self.inputs)
                bound = sqrt(3 / (fan_in * rivals.count(row.target)))
                parameter.uniform_(-bound, bound, generator=generator)

    def row_parameters(self) -> dict[str, Tensor]:
        """For each row's name a view of its parameter, "l" and the axes of `Row.parameter`."""
        return {
            row.name: self.plan.row_view(row, self.matrices[matrix_name(row.target, row.tied)])
            for row in self.rows
        }

    def _check(self, batch: WeightBatch) -> None:
        wanted = (self.spec, self.blocks, self.inputs)
        if (batch.spec, batch.blocks, batch.channels) != wanted:
            raise ShapeError(
                f"the layer is for {self.blocks} blocks and {self.inputs} channels of "
                f"{self.spec}, got {batch!r}"
            )

    def _run_plan(self, batch: WeightBatch, relu: Collection[str] = ()) -> dict[str, Tensor]:
        self._check(batch)
        return self.plan.run(batch, dict(self.matrices.items()), relu)

    def _run_reference(self, batch: WeightBatch) -> dict[str, Tensor]:
        self._check(batch)
        return reference(self.rows, batch, self.row_parameters())

    @property
    def parameter_count(self) -> int:
        """How many numbers it learns."""
        return sum(parameter.numel() for parameter in self.parameters())

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.inputs} -> {self.outputs} channels, {self.blocks} blocks "
            f"of {self.spec}, {len(self.rows)} rows, {self.parameter_count:,} parameters)"
        )
