"""Whether what an element makes of a block is that block again, in the new coordinates.

Gauges may ask for what a file has no place for: a shift without a bias that takes it, a value bias
without an output bias. So what would be written is read again, taken out of its gauge, and held
against the block as the group alone moves it.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, OtherNumbers, TensorFiles
from transformer_nfn.identity.elements.acting import canonical_block, last_norm_of, reading
from transformer_nfn.identity.elements.canonical import (
    Norm,
    Rules,
    rotated,
    undressed,
    value_constant,
)
from transformer_nfn.identity.elements.element import NetElement, streams
from transformer_nfn.identity.elements.rules import EXACT, ElementError, check_laid
from transformer_nfn.space import Block, WeightBatch


def check_block(
    checkpoint: Checkpoint, element: NetElement, number: int, tensors: Mapping[str, Tensor]
) -> None:
    """Raise unless the new tensors of a block are what its symmetry makes of the old ones.

    Args:
        checkpoint: What the element acts on.
        element: The element; its bases and blocks are known to be of their kind.
        number: Which block.
        tensors: By their names on disk, in float64.

    Raises:
        ElementError: If they compute something else.
    """
    rules, own = Rules.of(checkpoint), (checkpoint.block(number), reading(checkpoint, number))
    bases = tuple(element.basis(stream) for stream in streams(checkpoint, number))
    start = rotated(undressed(*own, rules), bases)
    moved = element.blocks[number](start)
    result = _with(checkpoint, tensors)
    new = result.block(number), _norms(result, element, number)
    if element.unseen is not None:
        rules = replace(rules, centred=False, centred_writes=False)
    again = undressed(*new, rules, element.unseen)
    moved_values, again_values = _values(moved), _values(again)
    declared = checkpoint.spec.block
    off = {n: again_values[n] - value for n, value in moved_values.items()}
    error, under, laid, had = (
        row_sizes(declared, values) for values in (off, moved_values, _terms(*new), _terms(*own))
    )
    for name, wrong in error.items():
        place = f"block {number}, {name}"
        if not (wrong <= EXACT * (under[name] + laid[name])).all():
            raise ElementError(
                f"{place}: the element makes another function of it, since its gauge asks for "
                f"what this network has no place for, or its numbers are too large"
            )
        least = under[name]
        if name[0] == "b":  # a constant counts as the row beside it, or all rows where it has none
            rows = under[name[1:]]
            least = torch.maximum(least, rows if rows.shape == least.shape else rows.norm())
        check_laid(laid[name], least, had[name], checkpoint.dtype, place)


def _norms(result: Checkpoint, element: NetElement, number: int) -> tuple[Norm, ...]:
    """The norms that a block reads, the encoder's as its own element leaves it."""
    norms = reading(result, number)
    if (encoder := result.encoder) is None or element.encoder is None:
        return norms
    return (*norms[:-1], last_norm_of(encoder, element.encoder))


def check_ties(checkpoint: Checkpoint, element: NetElement, number: int) -> None:
    """Raise if experts of equal scores, which are chosen by their place, change their order.

    Args:
        checkpoint: What the element acts on.
        element: The element.
        number: Which block.

    Raises:
        ElementError: If they do.
    """
    if not checkpoint.spec.block.shifted:
        return
    canonical = canonical_block(checkpoint, number)
    for name, axis, order in orders_of_choices(checkpoint, element, number):
        columns = canonical[name][0, 0, 0].movedim(axis, 0).flatten(1)
        kinds = torch.unique(columns, dim=0, return_inverse=True)[1]
        places = torch.argsort(order)  # of each expert in the result
        for kind in kinds.unique():
            alike = torch.nonzero(kinds == kind).flatten()
            if not (places[alike].diff() > 0).all():
                raise ElementError(
                    f"block {number}: experts {', '.join(map(str, alike[:4].tolist()))} have "
                    f"the same scores, so the first of them is chosen: they must keep their "
                    f"order; leave out the part experts"
                )


def orders_of_choices(
    checkpoint: Checkpoint, element: NetElement, number: int
) -> Iterator[tuple[str, int, Tensor]]:
    """Routers of a block, their axis of experts, and the order that an element brings these into.

    Args:
        checkpoint: What the element acts on.
        element: The element.
        number: Which block.
    """
    block = checkpoint.spec.block
    for name in block.shifted:
        for axis, index in enumerate(block.tensors[name]):
            if (order := element.blocks[number].parts.get(index.label)) is not None:
                yield name, axis, order[0, 0]


def row_sizes(declared: Block, block: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For each tensor of a block the sizes of its rows along the stream, and of its constants.

    What a reader adds is a constant for each of its rows, what a writer adds is one for all.
    """
    sizes = {}
    for name, (axis, _) in declared.readers.items():
        rows = block[name].movedim(axis, 0)
        if (constants := block.get(f"b{name}")) is None:
            rows, constants = rows[:-1], rows[-1]
        sizes[name], sizes[f"b{name}"] = rows.norm(dim=0), constants.abs()
    for name in declared.writers:
        if f"b{name}" in declared.writers:
            sizes[name], sizes[f"b{name}"] = block[name].norm(dim=-1), block[f"b{name}"].norm()
    return sizes


def _values(batch: WeightBatch) -> dict[str, Tensor]:
    return {name: tensor[0, 0, 0] for name, tensor in batch.tensors.items()}


def _terms(batch: WeightBatch, norms: tuple[Norm, ...]) -> dict[str, Tensor]:
    """For each canonical value the sizes of the numbers that it is a sum of."""
    block = {name: value.abs() for name, value in _values(batch).items()}
    terms = dict(block)
    for name, (axis, half) in batch.spec.block.readers.items():
        stored = block[name].movedim(axis, 0)
        scale, shift = (v.abs().view(-1, *[1] * (stored.dim() - 1)) for v in norms[half])
        weight = stored[: len(scale)]
        folded, constants = weight * scale, (weight * shift).sum(dim=0)
        if f"b{name}" in block:
            terms[f"b{name}"] = block[f"b{name}"] + constants
        else:
            folded = torch.cat([folded, (stored[-1] + constants)[None]])
        terms[name] = folded.movedim(0, axis)
    for each in batch.spec.block.attentions:
        constant = value_constant(block[each.value][..., -1, :], block[each.output_weight])
        terms[each.constant] = block[each.constant] + constant
    return terms


def _with(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Checkpoint:
    """The same network with some tensors changed, in memory."""
    changed = copy.copy(checkpoint)
    changed.files = _Changed(checkpoint.files, tensors)
    return changed


class _Changed(OtherNumbers):
    def __init__(self, files: TensorFiles, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(files)
        self._tensors = tensors

    def read(self, name: str) -> Tensor:
        return self._tensors[name] if name in self._tensors else super().read(name)
