"""Equivariant and invariant layers, derived from the declaration of a block."""

from transformer_nfn.layers.budget import DEFAULT_BUDGET, BudgetError
from transformer_nfn.layers.heads.layer import HeadAwareLayer
from transformer_nfn.layers.heads.messages import Messages, NodeEncoder, Standardised, pooled
from transformer_nfn.layers.heads.seeded import seeded_linear
from transformer_nfn.layers.heads.units import Units, units_of
from transformer_nfn.layers.heads.values import (
    ROW_VALUES,
    cosine,
    head_to_neuron_values,
    head_values,
    neuron_values,
    nonzero_square,
    row_to_head_values,
)
from transformer_nfn.layers.layer import (
    EquivariantLayer,
    InvariantLayer,
    RowLayer,
    pointwise_relu,
)
from transformer_nfn.layers.recomputing import recomputed
from transformer_nfn.layers.reference import reference as run_reference
from transformer_nfn.layers.rows import (
    CONSTANT,
    INVARIANT,
    Row,
    equivariant_rows,
    invariant_rows,
)

__all__ = [
    "CONSTANT",
    "DEFAULT_BUDGET",
    "INVARIANT",
    "ROW_VALUES",
    "BudgetError",
    "EquivariantLayer",
    "HeadAwareLayer",
    "InvariantLayer",
    "Messages",
    "NodeEncoder",
    "Row",
    "RowLayer",
    "Standardised",
    "Units",
    "cosine",
    "equivariant_rows",
    "head_to_neuron_values",
    "head_values",
    "invariant_rows",
    "neuron_values",
    "nonzero_square",
    "pointwise_relu",
    "pooled",
    "recomputed",
    "row_to_head_values",
    "run_reference",
    "seeded_linear",
    "units_of",
]
