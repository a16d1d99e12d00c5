"""Refuse a layer that would not fit, before any memory is taken."""

from collections.abc import Sequence
from math import prod

from transformer_nfn.layers.lowrank.factors import Factors
from transformer_nfn.layers.rows import Row, Sizes

#: Parameters a layer may have unless its caller allows more: 0.8 GB in float32.
DEFAULT_BUDGET = 200_000_000


class BudgetError(ValueError):
    """A layer with more parameters than allowed."""


def check_budget(
    rows: Sequence[Row],
    sizes: Sizes,
    *,
    blocks: int,
    inputs: int,
    outputs: int,
    rank: int | None,
    budget: int,
) -> None:
    """Count the parameters of a layer.

    Raises:
        BudgetError: If there are more than the budget; names the largest rows and what to do.
    """
    counts = {
        row: blocks
        * (
            prod(row.parameter_shape(sizes, inputs, outputs))
            if rank is None
            else Factors(row, rank, sizes, inputs, outputs).count
        )
        for row in rows
    }
    total = sum(counts.values())
    if total > budget:
        largest = sorted(counts.items(), key=lambda item: -item[1])[:4]
        lines = [f"  {row.name}: parameter {row.parameter}, {count:,}" for row, count in largest]
        kind = "layer" if rank is None else f"layer of rank {rank}"
        raise BudgetError(
            f"a {kind} from {inputs} to {outputs} channels for {blocks} blocks would have "
            f"{total:,} parameters ({4 * total / 1e9:.1f} GB in float32), more than max_parameters="
            f"{budget:,}. The largest of its {len(rows)} rows:\n" + "\n".join(lines) + "\n"
            f"Use fewer channels, {'set rank=8' if rank is None else 'a lower rank'}, take fewer "
            f"blocks at a time, or raise max_parameters."
        )
