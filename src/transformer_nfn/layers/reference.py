"""The layer as a loop over its rows, to be read beside the paper; `dense.plan` is the fast one."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from transformer_nfn.layers.rows import CONSTANT, Row
from transformer_nfn.space import WeightBatch


def reference(
    rows: Sequence[Row], batch: WeightBatch, parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Sum, for each target, the terms of its rows.

    Args:
        rows: The rows of a layer.
        batch: The weights, "n c l axes".
        parameters: For each row's name its parameter, "l" and then the axes of `Row.parameter`.

    Returns:
        For each target a tensor "n e l axes"; an axis has length 1 if no row varies along it.
    """
    sources = dict(batch.tensors) | {
        name: batch.product(name) for name in batch.spec.block.products
    }
    targets: dict[str, Tensor] = {}
    for row in rows:
        term = _term(row, sources.get(row.source), parameters[row.name])
        targets[row.target] = targets[row.target] + term if row.target in targets else term
    return targets


def _term(row: Row, source: Tensor | None, parameter: Tensor) -> Tensor:
    """One row as an einsum; upper-case letters are the primed axes of the target.

    ``A <- VO x [r]`` is "nclxr,lecx->nel", then one axis of length 1 for r and one for a.
    """
    into = "".join(row.source_axes)
    out = "".join(label.upper() if label in row.free_out else label for label in row.target_axes)
    kept = "".join(letter for letter in out if letter not in row.broadcast)
    primed = "".join(label.upper() for label in row.free_out)
    if row.source == CONSTANT:
        term = torch.einsum(f"le{primed}->el{kept}", parameter).unsqueeze(0)
    else:
        assert source is not None
        free = "".join(row.free_in)
        term = torch.einsum(f"ncl{into},le{primed}c{free}->nel{kept}", source, parameter)
    for position, letter in enumerate(out):
        if letter in row.broadcast:
            term = term.unsqueeze(3 + position)
    return term
