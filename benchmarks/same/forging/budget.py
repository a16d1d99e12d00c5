"""What a comparison of weights tolerates, as the attacker sees it.

One interface: `budget(draft)` gives a function that scales a proposed change, unit by unit, to the
limit of what passes. It only has to be about right: the attacker asks the comparison itself, by
`passes`, for the largest multiple of it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.same.forging.draft import Draft, held
from benchmarks.same.forging.roles import duals, head_axes, numbered, part
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity import match
from transformer_nfn.space import Kind as AxisKind

Delta = dict[str, Tensor]
Budget = Callable[[Delta], Delta]

#: Units are measured by at least this part of the root mean square of their like.
_FLOOR = 0.02


def passes(ours: Path, theirs: Path) -> bool:
    """Whether the comparison of weights alone, without running anything, finds no difference."""
    with Checkpoint(ours) as a, Checkpoint(theirs) as b:
        try:
            return not match(a, b).failures
        except CheckpointError:
            raise
        except (ValueError, RuntimeError):
            return False


def relative(draft: Draft) -> Budget:
    """Every unit of every tensor may move by a share of its own size: the unit roundoff."""
    share = torch.finfo(draft.dtype).eps / 2

    def scaled(delta: Delta) -> Delta:
        return _by_units(
            draft, delta, lambda w, norm: share * torch.maximum(norm(w), _floor(norm(w)))
        )

    return scaled


def roundings(draft: Draft) -> Budget:
    """Every unit of every tensor may move by what rounding its stored numbers does."""

    def scaled(delta: Delta) -> Delta:
        return _by_units(draft, delta, lambda w, norm: norm(rounding(w, draft.dtype)))

    return scaled


def products(draft: Draft) -> Budget:
    """The same for Q Kᵀ and V O of a head, in the form that the function sees."""
    plain = roundings(draft)

    def scaled(delta: Delta) -> Delta:
        found = plain(delta)
        for number in range(draft.blocks):
            block, change = draft.block(number), _declared(draft, found, number)
            for dual in duals(draft):
                if draft.spec.size(dual.label) == 1 or dual.kind is AxisKind.SCALED:
                    continue
                for unit in numbered(draft, dual):
                    names = (dual.left[0], dual.right[0])
                    factors = [_factor(draft, block, n, unit, dual.label) for n in names]
                    moved = [_factor(draft, change, n, unit, dual.label) for n in names]
                    share = _product_share(factors, moved, draft.dtype)
                    for name in names:
                        part(draft, change, name, unit).mul_(share)
            found |= draft.packed(number, change)
        return found

    return scaled


BUDGETS: Mapping[str, Callable[[Draft], Budget]] = {
    "relative": relative,
    "roundings": roundings,
    "products": products,
}


def rounding(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The root mean square of what storing each number rounds."""
    digit = torch.exp2(torch.frexp(value).exponent.double()) * (torch.finfo(dtype).eps / 4)
    return torch.where(value == 0, 0.0, digit / 3**0.5)


def _product_share(factors: list[Tensor], moved: list[Tensor], dtype: torch.dtype) -> float:
    (left, right), (dl, dr) = factors, moved
    change = (dl @ right.T + left @ dr.T).square().sum()
    rounds = [rounding(factor, dtype).square().sum(dim=0) for factor in factors]
    sizes = [factor.square().sum(dim=0) for factor in factors]
    expected = (rounds[0] * sizes[1] + sizes[0] * rounds[1]).sum()
    return (expected / change.clamp_min(1e-300)).sqrt().clamp(1e-6, 10).item()


def _factor(draft: Draft, block: Mapping[str, Tensor], name: str, unit: dict, label: str) -> Tensor:
    """A unit's part of a tensor with a dual axis last, all others joined."""
    labels = [i.label for i in draft.spec.block.tensors[name] if i.label not in unit]
    return part(draft, block, name, unit).movedim(labels.index(label), -1).flatten(0, -2)


def _by_units(
    draft: Draft, delta: Delta, size: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]
) -> Delta:
    """Each unit of a change as long as allowed."""
    inside: set[str] = set()
    found: Delta = {}
    units = {*head_axes(draft)} | {
        label for label, axis in draft.spec.block.axes.items() if axis.kind is AxisKind.PERMUTED
    }
    for number in range(draft.blocks):
        block, change = draft.block(number), _declared(draft, delta, number)
        for name in block:
            labels = [i.label for i in draft.spec.block.tensors[name]]
            axes = [i for i, label in enumerate(labels) if label not in units]
            change[name] = _to(change[name], block[name], axes, size)
        packed = draft.packed(number, change)
        inside |= set(packed)
        found |= packed
    for name, value in delta.items():
        if name not in inside:
            axes = list(range(1, value.dim())) if value.dim() > 1 else [0]
            found[name] = _to(value, draft.values[name], axes, size)
    return {name: value for name, value in found.items() if name in delta}


def _to(
    change: Tensor,
    weight: Tensor,
    axes: list[int],
    size: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor],
) -> Tensor:
    def norm(value: Tensor) -> Tensor:
        if not axes:
            return value.abs()
        return value.square().sum(dim=axes, keepdim=True).sqrt()

    return change * (size(weight, norm) / norm(change).clamp_min(1e-300))


def _floor(norms: Tensor) -> Tensor:
    return _FLOOR * norms.square().mean().sqrt()


def _declared(draft: Draft, delta: Delta, number: int) -> dict[str, Tensor]:
    batch = draft.chosen(held(draft.checkpoint, {**draft.zeros(), **delta})).block(number)
    return {name: batch[name][0, 0, 0].clone() for name in batch.tensors}
