"""Move each head to a well-conditioned member of its orbit."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from transformer_nfn.space.axes import Index, Kind
from transformer_nfn.space.axisview import AxisView
from transformer_nfn.space.weights import WeightBatch


@dataclass(frozen=True)
class Balanced:
    """Balanced weights, and for each linear axis the heads that have no balanced form.

    `deficient["k"]` has axes "n l" and the axes that index k; True marks a head whose product is
    numerically rank deficient. Such heads stand as they came.
    """

    weights: WeightBatch
    deficient: Mapping[str, Bool[Tensor, "n l ..."]]


def balance(batch: WeightBatch) -> Balanced:
    """Share the singular values of each head's product equally between its two factors.

    For Q and K of one head: QR of both, Q = Q₁R₁ and K = Q₂R₂, the SVD of the small core
    R₁R₂ᵀ = USVᵀ, then Q' = Q₁U√S and K' = Q₂V√S. So Q'K'ᵀ = QKᵀ, and Q'ᵀQ' = K'ᵀK' = S: the
    conditioning of both is the square root of the product's. Unique up to O(k).

    All channels of a network, and all tensors with the axis, stand below each other in Q₁R₁, so
    that one M serves them all. Computed in float64. What rounding destroyed when the weights were
    stored (ε·κ) it cannot bring back.
    """
    tensors = dict(batch.tensors)
    deficient = {}
    for label, axis in batch.spec.block.axes.items():
        if axis.kind is Kind.LINEAR:
            mask, moved = _balance_axis(batch.replace(tensors), label, axis.per)
            deficient[label] = mask
            tensors |= moved
    return Balanced(batch.replace(tensors), deficient)


def _balance_axis(
    batch: WeightBatch, label: str, per: tuple[str, ...]
) -> tuple[Bool[Tensor, "n l ..."], dict[str, Tensor]]:
    sides = []
    views = {
        name: AxisView(indices, label, per)
        for name, indices in batch.spec.block.tensors.items()
        if any(index.label == label for index in indices)
    }
    for side in (Index(label), Index(label, dual=True)):
        names = [name for name in views if side in batch.spec.block.tensors[name]]
        sides.append({name: views[name].unfold(batch[name]) for name in names})
    size = batch.spec.size(label)
    if any(sum(r.shape[-2] for r in rows.values()) < size for rows in sides):
        # Fewer rows than columns: no head can have full rank (the theorem's max(D_k, D_v) <= D).
        shape = (batch.networks, batch.blocks, *(batch.spec.size(outer) for outer in per))
        return torch.ones(shape, dtype=torch.bool, device=batch.device), {}
    orthogonal, triangular = zip(
        *(torch.linalg.qr(torch.cat([r.double() for r in rows.values()], -2)) for rows in sides),
        strict=True,
    )
    u, s, vh = torch.linalg.svd(triangular[0] @ triangular[1].mT)
    root = s.sqrt().unsqueeze(-2)  # n l per 1 k
    halves = (orthogonal[0] @ u * root, orthogonal[1] @ vh.mT * root)

    # ε of the stored dtype: below it a singular value is rounding, not signal.
    tolerance = torch.finfo(batch.dtype).eps * max(half.shape[-2] for half in halves)
    mask = s[..., -1] <= tolerance * s[..., 0]
    moved = {}
    for rows, half in zip(sides, halves, strict=True):
        parts = half.split([r.shape[-2] for r in rows.values()], dim=-2)
        for (name, row), part in zip(rows.items(), parts, strict=True):
            kept = torch.where(mask[..., None, None], row.double(), part).to(batch.dtype)
            moved[name] = views[name].fold(kept, tuple(batch[name].shape))
    return mask, moved
