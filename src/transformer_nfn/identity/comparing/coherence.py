"""Has what is left between two networks a direction? Rounding has none.

A change may be smaller than rounding in every number and still push all of them one way: a matrix
of low rank, added to thousands of weights. So what is left is compared, in its strongest direction,
with what rounding would leave there. That is not a formula but a draw: both files are rounded once
more, at random, and what comes of it goes through the same coordinates. Whatever makes rounding
itself lean one way (a few large rows, a norm's scale that many weights share) is then in both.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.identity.comparing.residuals import Residual
from transformer_nfn.identity.comparing.units import with_units_of
from transformer_nfn.space import WeightBatch

#: Draws of rounding that a difference is compared with.
DRAWS = 3
#: How many times as strong as the strongest of them it may be, and what is added to it, divided by
#: the root of the numbers that rounding is made of: where few of them count, it spreads more.
#: Rounding is not quite random: numbers on a coarser grid, such as weights that were float16 once,
#: plus one constant, all err alike. A copy of MiniLM with other means is at 1.4 for that reason.
LIMIT = 2.0
_SPREAD = 8.0
_STEPS = 24


def leaning_tensors(
    block: WeightBatch,
    difference: WeightBatch,
    roundings: Sequence[WeightBatch],
    loose: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> list[Residual]:
    """For each matrix of a block the strongest direction of a difference, against rounding's.

    Args:
        block: The second of two canonical blocks.
        difference: The first, in its coordinates, less the second.
        roundings: What rounding both of them again leaves between them.
        loose: Heads, by their axis, of which only the products agree; their factors say nothing.
    """
    found = []
    declared = block.spec.block
    units = {kind: some for kind in declared.units if (some := _heads_in(block, kind, loose))}
    tight = with_units_of(_filled(block, 1.0), _filled(block, 0.0), units, heads=True)
    for name, axes in declared.tensors.items():
        if name in declared.readers or (name in declared.writers and not name.startswith("b")):
            counts = _matrix(tight, name)
            rows = [_matrix(batch, name) * counts for batch in (difference, *roundings)]
            if "s" in [index.label for index in axes]:
                # A neuron's scale is known no better than what it reads and writes.
                rows = [_without(each, _matrix(block, name)) for each in rows]
            sizes = torch.stack([each.square().sum(dim=1) for each in rows[1:]]).mean(dim=0)
            lean = Leaning()
            lean.add(rows[0], rows[1:], sizes)
            found += lean.found(name)
    return found


def _heads_in(block: WeightBatch, kind: str, loose: Mapping[str, Sequence[int]]) -> list[int]:
    """Which units of a kind some heads are: keys may be shared by several, neurons are none."""
    labels = block.spec.block.units[kind].labels
    if not labels or not (heads := loose.get(labels[0])):
        return []
    shared = block.spec.size("m") if labels == ("g",) else 1
    return sorted({head // shared for head in heads})


class Leaning:
    """The strongest direction of rows that come slice by slice, and of what rounding leaves."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._squares, self._fourth = 0.0, 0.0

    def add(
        self,
        difference: Float[Tensor, "u x"],
        roundings: Sequence[Float[Tensor, "u x"]],
        sizes: Float[Tensor, " u"],
    ) -> None:
        """Some more rows, which count in units of what rounding does to each.

        Args:
            difference: What is left between two networks.
            roundings: What rounding leaves.
            sizes: For each row the mean square of what rounding does to it.
        """
        known = (sizes > 0).unsqueeze(1)
        scale = torch.where(known, sizes.clamp_min(1e-300).rsqrt().unsqueeze(1), 0.0)
        mean = torch.stack([(rows * scale).square() for rows in roundings]).mean(dim=0)
        self._squares += mean.sum().item()
        self._fourth += mean.square().sum().item()
        products = [_square(rows * scale) for rows in (difference, *roundings)]
        if self._sums:
            products = [one + two for one, two in zip(self._sums, products, strict=True)]
        self._sums = products

    def found(self, kind: str) -> list[Residual]:
        """How strong the difference is; nothing where rounding leaves nothing."""
        strengths = _largest(torch.stack(self._sums))
        usual = max(strengths[1:])
        if usual == 0:
            return []
        numbers = self._squares**2 / self._fourth  # that count
        limit = LIMIT + _SPREAD / sqrt(numbers)
        return [Residual(kind, None, strengths[0] / usual, limit, leans=True)]


def _filled(block: WeightBatch, value: float) -> WeightBatch:
    return block.replace({name: torch.full_like(block[name], value) for name in block.tensors})


def _square(rows: Float[Tensor, "u x"]) -> Float[Tensor, "x x"]:
    return rows.T @ rows


def _largest(products: Float[Tensor, "n x x"]) -> list[float]:
    """The root of each largest eigenvalue, by the power method; never more than it is."""
    seed = torch.Generator().manual_seed(0)
    start = torch.randn(products.shape[-1], generator=seed, dtype=products.dtype)
    way = start.expand(len(products), -1).unsqueeze(2)
    for _ in range(_STEPS):
        length = torch.linalg.vector_norm(way, dim=1, keepdim=True)
        way = products @ (way / length.clamp_min(1e-300))
    sizes: list[float] = torch.linalg.vector_norm(way, dim=1).sqrt().flatten().tolist()
    return sizes


def _without(rows: Float[Tensor, "u x"], ways: Float[Tensor, "u x"]) -> Float[Tensor, "u x"]:
    """Rows without what each has along its own direction."""
    share = (rows * ways).sum(dim=1) / ways.square().sum(dim=1).clamp_min(1e-300)
    return rows - share.unsqueeze(1) * ways


def _matrix(batch: WeightBatch, name: str) -> Float[Tensor, "u x"]:
    """A row for each column of a reader, or for each row of a writer; the stream comes last."""
    tensor = batch[name][0, 0, 0]
    if name in (readers := batch.spec.block.readers):
        tensor = tensor.movedim(readers[name][0], -1)
    return tensor.reshape(-1, tensor.shape[-1])
