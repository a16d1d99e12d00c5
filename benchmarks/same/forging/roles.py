"""What the declared tensors of a block are to each other, read off the family's own tables.

Nothing here names a tensor: a family that is added later is attacked by the same code.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.same.forging.bases import is_writer, pick
from benchmarks.same.forging.draft import Draft
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.space import Kind


class UnfitError(Exception):
    """This family has no part that such a forgery needs."""


@dataclass(frozen=True)
class Dual:
    """An axis on which the group acts, and against it on the other side.

    Attributes:
        label: The axis.
        kind: How.
        per: The axes that index its group: heads, neurons.
        left: Tensors that have it.
        right: Tensors that have its dual.
    """

    label: str
    kind: Kind
    per: tuple[str, ...]
    left: tuple[str, ...]
    right: tuple[str, ...]


def duals(draft: Draft) -> list[Dual]:
    """All axes with a dual: queries against keys, values against outputs, scales of neurons."""
    block = draft.spec.block
    found = []
    for label, axis in block.axes.items():
        if axis.kind.has_dual:
            sides = [
                tuple(
                    name
                    for name, indices in block.tensors.items()
                    if any(i.label == label and i.dual is dual for i in indices)
                )
                for dual in (False, True)
            ]
            found.append(Dual(label, axis.kind, axis.per, sides[0], sides[1]))
    return found


def pick_dual(draft: Draft, generator: torch.Generator, *, wide: bool | None = None) -> Dual:
    """One of them; `wide` asks for matrices, or for single numbers."""
    fitting = [
        dual for dual in duals(draft) if wide is None or (draft.spec.size(dual.label) > 1) == wide
    ]
    if not fitting:
        raise UnfitError("no axis of such a kind has a dual")
    return pick(generator, fitting)


Unit = Mapping[str, int]


def pick_unit(draft: Draft, labels: tuple[str, ...], generator: torch.Generator) -> dict[str, int]:
    """One index of each of some axes."""
    return {
        label: int(torch.randint(draft.spec.size(label), (), generator=generator))
        for label in labels
    }


def part(draft: Draft, block: Mapping[str, Tensor], name: str, unit: Unit) -> Tensor:
    """The part of a tensor that belongs to a unit, as a view; other axes keep their order."""
    labels = [index.label for index in draft.spec.block.tensors[name]]
    return block[name][tuple(unit.get(label, slice(None)) for label in labels)]


def others(draft: Draft, block: Mapping[str, Tensor], name: str, unit: Unit) -> Tensor:
    """1 where a tensor does not belong to a unit, 0 where it does."""
    mask = {name: torch.ones_like(block[name])}
    part(draft, mask, name, unit).zero_()
    return mask[name]


def move(draft: Draft, block: dict[str, Tensor], dual: Dual, unit: Unit, M: Tensor) -> None:
    """Act on one unit with a matrix: T M on one side, T M⁻ᵀ on the other. A true symmetry."""
    inverse = torch.linalg.inv(M).T
    for names, matrix in ((dual.left, M), (dual.right, inverse)):
        for name in names:
            view = part(draft, block, name, unit)
            view.copy_((view.movedim(axis_of(draft, name, dual, unit), -1) @ matrix).movedim(
                -1, axis_of(draft, name, dual, unit)
            ))  # fmt: skip


def axis_of(draft: Draft, name: str, dual: Dual, unit: Unit) -> int:
    """Where a dual axis is in the part of a unit."""
    labels = [i.label for i in draft.spec.block.tensors[name] if i.label not in unit]
    return labels.index(dual.label)


def numbered(draft: Draft, dual: Dual) -> list[dict[str, int]]:
    """All units of a dual axis: each head, or each neuron."""
    sizes = [draft.spec.size(label) for label in dual.per]
    grid = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).reshape(-1, len(sizes))
    return [dict(zip(dual.per, map(int, row), strict=True)) for row in grid]


def readers(draft: Draft, half: int) -> list[str]:
    """Declared tensors that read the stream: those of attention, or those of the MLP."""
    found = []
    for name, indices in draft.spec.block.tensors.items():
        labels = [index.label for index in indices]
        reads = not is_writer(draft, name) and {"x", "z"} & set(labels)
        if reads and ("a" in labels) == bool(half):
            found.append(name)
    return found


def stream_rows(draft: Draft, block: Mapping[str, Tensor], name: str) -> Tensor:
    """A reader's tensor as a view with the stream first, without its bias row."""
    labels = [index.label for index in draft.spec.block.tensors[name]]
    axis = labels.index("x" if "x" in labels else "z")
    return block[name].movedim(axis, 0)[: draft.checkpoint.D]


def bias_row(draft: Draft, block: Mapping[str, Tensor], name: str) -> Tensor | None:
    """The bias of a reader as a view, if this file has a place for it."""
    labels = [index.label for index in draft.spec.block.tensors[name]]
    if "z" in labels:
        if not draft.checkpoint.has_bias(name):
            return None
        return block[name].movedim(labels.index("z"), 0)[draft.checkpoint.D]
    return block.get(f"b{name}")


def is_free_norm(checkpoint: Checkpoint) -> bool:
    """Whether the scales of the norms in the blocks can move into what reads them."""
    return checkpoint.family.norms is not None and not checkpoint.post_norm


def head_axes(draft: Draft) -> tuple[str, ...]:
    """The axes that number heads, outermost first."""
    block = draft.spec.block
    wide = [d for d in duals(draft) if draft.spec.size(d.label) > 1]
    outer = wide[0].per
    inner = tuple(
        label
        for label, axis in block.axes.items()
        if axis.kind is Kind.PERMUTED and axis.per and set(axis.per) <= set(outer)
    )
    return (*outer, *inner)


def neuron_axis(draft: Draft) -> str:
    """The axis of hidden neurons: permuted, and no head's."""
    heads = head_axes(draft)
    for label, axis in draft.spec.block.axes.items():
        if axis.kind is Kind.PERMUTED and label not in heads:
            return label
    raise UnfitError("no hidden neurons")


def having(draft: Draft, label: str) -> list[str]:
    """Declared tensors with an axis."""
    tensors = draft.spec.block.tensors
    return [name for name in tensors if any(i.label == label for i in tensors[name])]


def stored_here(draft: Draft, number: int, name: str) -> bool:
    """Whether a declared tensor is in the file: optional biases may not be."""
    block = {n: torch.zeros_like(t) for n, t in draft.block(number).items()}
    block[name] = torch.ones_like(block[name])
    return any(bool(value.any()) for value in draft.packed(number, block).values())
