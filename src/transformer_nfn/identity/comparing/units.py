"""A block as the units that its function is made of, and the distance between two of them.

Each unit is taken in the form that the function sees, which no symmetry of the block changes: a
head's Q Kᵀ and V O (under RoPE Q Kᵀ for each pair of coordinates, as a complex product), what a
neuron reads and what it writes, and where a scale may move between the two, their product. So an
error cannot hide in a factor that is small, or behind a neuron that is large.
"""

from collections.abc import Collection, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.group import GroupElement
from transformer_nfn.space import Kind, WeightBatch

#: A number for each unit, by the kind of unit: ``"Q K"``, ``"V O"``, ``"A"``, ``"up down"``, …
Units = dict[str, Tensor]
#: P and R of a product P Rᵀ, or the variances of both.
Factors = tuple[Tensor, ...]


def squared_distances(ours: WeightBatch, theirs: WeightBatch) -> Units:
    """The squared distance of each unit of two canonical blocks in the same coordinates."""
    a, b = _factors(_block(ours)), _factors(_block(theirs))
    return {
        kind: product_squares(a[kind], b[kind], pairs=_in_pairs(theirs, kind))
        if len(b[kind]) == 2
        else (a[kind][0] - b[kind][0]).square().sum(dim=-2).squeeze(-1)
        for kind in b
    }


def expected_squares(block: WeightBatch, variances: WeightBatch) -> Units:
    """What rounding makes of these distances: the mean square for each unit of one block.

    Args:
        block: Its canonical weights.
        variances: `variance.block_variances` of it.
    """
    sizes, offs = _factors(_block(block)), _factors(_block(variances))
    return {
        kind: expected_product_squares(sizes[kind], offs[kind], pairs=_in_pairs(block, kind))
        if len(sizes[kind]) == 2
        else offs[kind][0].sum(dim=-2).squeeze(-1)
        for kind in sizes
    }


def in_order_of(units: Units, element: GroupElement) -> Units:
    """The first block's numbers in the order in which an element puts its units."""
    parts = {label: part[0, 0] for label, part in element.parts.items()}
    heads = parts.get("h", parts.get("g"))
    found = {}
    for kind, values in units.items():
        if kind in ("Q K", "V O"):
            if "m" in parts:
                inside = parts["m"].view(*parts["m"].shape, *[1] * (values.dim() - 2))
                values = torch.take_along_dim(values, inside, dim=1)
            found[kind] = values if heads is None else values[heads]
        else:
            found[kind] = values[parts["a"]] if values.dim() else values
    return found


def both(ours: Units, theirs: Units) -> Units:
    """What rounding does to either of two blocks."""
    return {kind: ours[kind] + theirs[kind] for kind in theirs}


def numbers_in(kind: str, D: int) -> int:
    """Of how many independent numbers a unit is made, at the least."""
    return 1 if kind == "bA" else D


def with_units_of(
    theirs: WeightBatch,
    ours: WeightBatch,
    suspected: Mapping[str, Collection[int]],
    *,
    heads: bool = False,
) -> WeightBatch:
    """A canonical block in which some units are those of another in the same coordinates.

    Args:
        theirs: The block.
        ours: Where the units come from.
        suspected: Which units, by kind, counted through.
        heads: Whether units of Q K are whole heads, also where RoPE has them in pairs.
    """
    block = {name: tensor.clone() for name, tensor in theirs.tensors.items()}
    for kind, units in suspected.items():
        for name in ("A", "bA", "B") if kind == "A B" else kind.split():
            labels = [index.label for index in theirs.spec.block.tensors[name]]
            counted = [axis for axis, label in enumerate(labels) if label in "hgma"]
            shape = [size if i in counted else 1 for i, size in enumerate(ours[name].shape[3:])]
            chosen = torch.zeros(shape, dtype=torch.bool)
            chosen.view(-1)[_places(theirs, name, kind, units, heads)] = True
            block[name] = torch.where(chosen, ours[name], block[name])
    return WeightBatch(theirs.spec, block)


def _places(
    batch: WeightBatch, name: str, kind: str, units: Collection[int], whole: bool
) -> list[int]:
    """Which heads, groups or neurons of a tensor the units of a kind are."""
    sizes = batch.spec.sizes
    if kind not in ("Q K", "V O"):
        return sorted(units)
    pairs = sizes["D_k"] // 2 if _in_pairs(batch, kind) and not whole else 1
    heads = {unit // pairs for unit in units}
    inner = 1 if name in ("Q", "O") else sizes.get("heads_per_group", 1)
    return sorted({head // inner for head in heads})


def product_squares(ours: Factors, theirs: Factors, *, pairs: bool = False) -> Float[Tensor, "*u"]:
    """The squared distance of P Rᵀ, from k × k products of the factors "… x k" and "… y k".

    With P' = P + ΔP it is ‖ΔP Rᵀ + P' ΔRᵀ‖², in which all terms are small: nothing cancels.

    Args:
        ours: P' and R'.
        theirs: P and R.
        pairs: Whether the coordinates (j, j + k/2) are complex numbers, each a product of its own.
    """
    (moved, moved_other), (plain, other) = ours, theirs
    off, off_other = moved - plain, moved_other - other
    if pairs:
        off, moved, off_other, other = (as_complex(t) for t in (off, moved, off_other, other))
        one = _size(off) * _size(other)
        two = _size(moved) * _size(off_other)
        cross = (off.conj() * moved).sum(dim=-2) * (off_other.conj() * other).sum(dim=-2)
        return (one + two + 2 * cross.real).clamp_min(0)
    one = (off.mT @ off) * (other.mT @ other)
    two = (moved.mT @ moved) * (off_other.mT @ off_other)
    cross = (off.mT @ moved) * (other.mT @ off_other)
    return (one + two + 2 * cross).sum(dim=(-2, -1)).clamp_min(0)


def expected_product_squares(
    sizes: Factors, variances: Factors, *, pairs: bool = False
) -> Float[Tensor, "*u"]:
    """The mean of `product_squares` if P and R are off by these variances."""
    size, other = (_size(factor) for factor in sizes)
    off, off_other = (factor.sum(dim=-2) for factor in variances)
    if pairs:
        size, other, off, off_other = (_pair_sums(sums) for sums in (size, other, off, off_other))
    each = off * other + off_other * size + off * off_other
    return each if pairs else each.sum(dim=-1)


def _factors(block: Mapping[str, Tensor]) -> dict[str, tuple[Tensor, ...]]:
    """For each kind of unit what it reads, and what it writes if only their product counts.

    Both are "… x k", and the last axis is summed over.
    """
    Q, K, V, O = (block[name] for name in "QKVO")
    if Q.dim() == 3:
        Q, O = Q.unsqueeze(1), O.unsqueeze(1)
    found: dict[str, tuple[Tensor, ...]] = {
        "Q K": (Q, K.unsqueeze(1)),  # g m z k, g 1 z k
        "V O": (V.unsqueeze(1), O.mT),  # g 1 z v, g m x v
    }
    if "gate" in block:
        found["gate"] = (block["gate"].T.unsqueeze(-1),)  # a z 1
        found["up down"] = block["up"].movedim(0, 1), block["down"].mT  # a z 1, a x 1
    elif block["A"].dim() == 3:  # a scale may move between A and B
        reads = torch.cat([block["A"].movedim(0, 1), block["bA"].unsqueeze(-2)], dim=-2)
        found["A B"] = reads, block["B"].mT
    else:
        found["A"] = (block["A"].T.unsqueeze(-1),)
        found["bA"] = (block["bA"][:, None, None],)
        found["B"] = (block["B"].unsqueeze(-1),)
    for name in ("bO", "bB", "bdown"):
        if name in block:
            found[name] = (block[name].unsqueeze(-1),)
    return found


def as_complex(tensor: Float[Tensor, "*u k"]) -> Tensor:
    """The pairs (j, j + D_k/2) as complex numbers."""
    return torch.complex(*(half.contiguous() for half in tensor.chunk(2, dim=-1)))


def _size(factor: Tensor) -> Tensor:
    return factor.abs().square().sum(dim=-2)


def _pair_sums(sums: Float[Tensor, "*u k"]) -> Float[Tensor, "*u j"]:
    first, second = sums.chunk(2, dim=-1)
    return first + second


def _in_pairs(batch: WeightBatch, kind: str) -> bool:
    return kind == "Q K" and batch.spec.block.axes["k"].kind is Kind.ROTARY


def _block(batch: WeightBatch) -> dict[str, Tensor]:
    return {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}
