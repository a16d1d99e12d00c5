"""What both layers share: rows, their parameters, two ways to run them."""

from collections.abc import Collection, Mapping, Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from transformer_nfn.layers.budget import check_budget
from transformer_nfn.layers.dense.plan import Plan
from transformer_nfn.layers.lowrank.steps import LowRank
from transformer_nfn.layers.reference import reference
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes
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
        generator: torch.Generator,
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
    def reset_parameters(self, generator: torch.Generator) -> None:
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
        wanted = (self.spec, blocks, self.inputs)
        if (batch.spec, batch.blocks, batch.channels) != wanted:
            raise ShapeError(
                f"the layer is for {blocks} blocks and {self.inputs} channels of "
                f"{self.spec}, got {batch!r}"
            )

    def _run_plan(
        self,
        batch: WeightBatch,
        parameters: Mapping[str, Tensor] | None,
        relu: Collection[str] = (),
    ) -> dict[str, Tensor]:
        self._check(batch, self.blocks if parameters is None else 1)
        return self.plan.run(batch, self._stored() if parameters is None else parameters, relu)

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
