"""What features of all kinds are computed with: singular values of products, norms, summaries."""

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.space import NetBatch

#: Tensors of a block that features are made of.
_SEEN = frozenset(("Q", "K", "V", "O", "A", "B", "bA", "bB", "bO"))

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_CHUNK = 256  # networks at a time in float64: some 100 MB for the paper's nets


def by_chunks(
    examples: Examples, values: Callable[[NetBatch], Float64[Tensor, "n f"]]
) -> Float32[np.ndarray, "n f"]:
    """Features of all rows, some networks at a time."""
    parts = [
        values(examples.nets(slice(first, first + _CHUNK))).numpy()
        for first in range(0, len(examples), _CHUNK)
    ]
    if not parts:
        one = examples.shape.net_batch(torch.zeros(1, examples.shape.size))
        parts = [np.empty((0, values(one).shape[1]))]
    return as_float32(np.concatenate(parts))


def check_owned(nets: NetBatch) -> None:
    """Refuse blocks with a tensor that no feature would see.

    Raises:
        BenchError: If there is one.
    """
    if unknown := sorted(set(nets.blocks.tensors) - _SEEN):
        raise BenchError(
            f"block {nets.blocks.spec.block.name!r} has {', '.join(unknown)}, which these features "
            f"do not see: networks that differ in it alone would be the same"
        )


def product_singular_values(
    left: Float64[Tensor, "*b x k"], right: Float64[Tensor, "*b y k"]
) -> Float64[Tensor, "*b s"]:
    """Singular values of left rightᵀ: those of the product of the two triangles of QR."""
    first, second = (torch.linalg.qr(factor, mode="r")[1] for factor in (left, right))
    values: Tensor = torch.linalg.svdvals(first @ second.mT)
    return values


def norm(tensor: Float64[Tensor, "..."], dim: int | tuple[int, int]) -> Float64[Tensor, "..."]:
    """The root of the sum of squares along one axis or two."""
    values: Tensor = torch.linalg.vector_norm(tensor, dim=dim)
    return values


def summary_of(tensor: Float64[Tensor, "*b m"]) -> Float64[Tensor, "*b 7"]:
    """`summary` of a tensor."""
    return torch.from_numpy(summary(tensor.numpy()))


def summary(values: Float[np.ndarray, "*b m"]) -> Float64[np.ndarray, "*b 7"]:
    """Mean, variance and the quantiles 0, 25, 50, 75 and 100 % along the last axis."""
    ordered = np.sort(values, axis=-1)
    position = np.array(_QUANTILES) * (values.shape[-1] - 1)
    low = np.floor(position).astype(np.int64)
    high = np.ceil(position).astype(np.int64)
    below, above = (ordered[..., places].astype(np.float64) for places in (low, high))
    mean = ordered.mean(axis=-1, dtype=np.float64)[..., None]
    variance = ordered.var(axis=-1, dtype=np.float64)[..., None]
    return np.concatenate([mean, variance, below + (above - below) * (position - low)], axis=-1)


def as_float32(values: Float64[np.ndarray, "n f"]) -> Float32[np.ndarray, "n f"]:
    """Rounded, and without overflow: products of huge weights stay finite."""
    limit = np.finfo(np.float32).max
    rounded: np.ndarray = np.clip(values, -limit, limit).astype(np.float32)
    return rounded
