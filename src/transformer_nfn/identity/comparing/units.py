"""The units that a block's function is made of, and the distance between those of two blocks.

Which they are, and the form that the function sees of them, is for the parts of the block to say.
"""

from collections.abc import Collection, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.group import GroupElement
from transformer_nfn.space import WeightBatch

#: A number for each unit, by the kind of unit: ``"Q K"``, ``"V O"``, ``"A"``, ``"up down"``, …
Units = dict[str, Tensor]
#: What float64 leaves of a 0 when means are taken away and the like.
NOTHING = 1e-12
#: P and R of a product P Rᵀ, or the variances of both.
Factors = tuple[Tensor, ...]


def squared_distances(ours: WeightBatch, theirs: WeightBatch) -> Units:
    """The squared distance of each unit of two canonical blocks in the same coordinates."""
    one, two, found = _block(ours), _block(theirs), {}
    for kind, unit in theirs.spec.block.units.items():
        a, b = unit.factors(one), unit.factors(two)
        if len(b) == 2:
            found[kind] = product_squares(a, b, pairs=unit.pairs)
        else:
            found[kind] = (a[0] - b[0]).square().sum(dim=-2).squeeze(-1)
    return found


def lone_constants(ours: WeightBatch, theirs: WeightBatch) -> dict[str, int]:
    """Kinds of constants that are 0 in all of one of two blocks; which one has something."""
    blocks, found = (_block(ours), _block(theirs)), {}
    for kind, unit in theirs.spec.block.units.items():
        if unit.constant:
            sizes = [unit.factors(block)[0].abs().max() for block in blocks]
            nothing = [bool(size <= NOTHING) for size in sizes]
            if nothing[0] != nothing[1]:
                found[kind] = nothing.index(False)
    return found


def expected_squares(block: WeightBatch, variances: WeightBatch) -> Units:
    """What rounding makes of these distances: the mean square for each unit of one block.

    Args:
        block: Its canonical weights.
        variances: `variance.block_variances` of it.
    """
    weights, off, found = _block(block), _block(variances), {}
    for kind, unit in block.spec.block.units.items():
        sizes, offs = unit.factors(weights), unit.factors(off)
        if len(sizes) == 2:
            found[kind] = expected_product_squares(sizes, offs, pairs=unit.pairs)
        else:
            found[kind] = offs[0].sum(dim=-2).squeeze(-1)
    return found


def in_order_of(units: Units, element: GroupElement, bases: Sequence[Tensor | None]) -> Units:
    """The first block's numbers in the order in which an element puts its units.

    Args:
        units: The numbers.
        element: Of heads and neurons.
        bases: Of the streams, which coordinates go with.
    """
    parts = {label: part[0, 0] for label, part in element.parts.items()}
    found = {}
    for kind, values in units.items():
        labels = element.spec.block.units[kind].labels
        if len(labels) > 1 and labels[1] in parts:
            inside = parts[labels[1]]
            inside = inside.view(*inside.shape, *[1] * (values.dim() - 2))
            values = torch.take_along_dim(values, inside, dim=1)
        if labels and labels[0] in parts:
            values = values[parts[labels[0]]]
        if (half := element.spec.block.gains.get(kind)) is not None:
            basis = bases[half + 1]
            values = values if basis is None else values @ basis.square()
        found[kind] = values
    return found


def both(ours: Units, theirs: Units) -> Units:
    """What rounding does to either of two blocks."""
    return {kind: ours[kind] + theirs[kind] for kind in theirs}


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
        heads: Whether units that are counted in pairs are given whole.
    """
    block = {name: tensor.clone() for name, tensor in theirs.tensors.items()}
    declared, spec = theirs.spec.block, theirs.spec
    for kind, numbers in suspected.items():
        unit = declared.units[kind]
        pairs = spec.size("k") // 2 if unit.pairs and not heads else 1
        whole = [number // pairs for number in numbers]
        sizes = [spec.size(label) for label in unit.labels]
        for name in unit.tensors:
            own = [index.label for index in declared.tensors[name]]
            shape = [spec.size(label) if label in unit.labels else 1 for label in own]
            chosen = torch.zeros(shape, dtype=torch.bool)
            # Of a group that shares a key the units are more than the keys.
            places = torch.unravel_index(torch.tensor(whole), sizes) if sizes else ()
            by_label = dict(zip(unit.labels, places, strict=True))
            chosen[tuple(by_label.get(label, 0) for label in own)] = True
            block[name] = torch.where(chosen, ours[name], block[name])
    return WeightBatch(theirs.spec, block)


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


def as_complex(tensor: Float[Tensor, "*u k"]) -> Tensor:
    """The pairs (j, j + D_k/2) as complex numbers."""
    return torch.complex(*(half.contiguous() for half in tensor.chunk(2, dim=-1)))


def _size(factor: Tensor) -> Tensor:
    return factor.abs().square().sum(dim=-2)


def _pair_sums(sums: Float[Tensor, "*u k"]) -> Float[Tensor, "*u j"]:
    first, second = sums.chunk(2, dim=-1)
    return first + second


def _block(batch: WeightBatch) -> dict[str, Tensor]:
    return {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}
