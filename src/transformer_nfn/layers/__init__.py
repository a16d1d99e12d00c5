"""Equivariant and invariant layers, derived from the declaration of a block."""

from transformer_nfn.layers.budget import DEFAULT_BUDGET, BudgetError
from transformer_nfn.layers.equivariant import EquivariantLayer, pointwise_relu
from transformer_nfn.layers.invariant import InvariantLayer
from transformer_nfn.layers.reference import reference as run_reference
from transformer_nfn.layers.rowlayer import RowLayer
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
    "BudgetError",
    "EquivariantLayer",
    "InvariantLayer",
    "Row",
    "RowLayer",
    "equivariant_rows",
    "invariant_rows",
    "pointwise_relu",
    "run_reference",
]
