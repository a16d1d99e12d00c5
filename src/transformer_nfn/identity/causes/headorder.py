"""Attention heads that changed their order in some of a block's tensors and not in others."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.causes.changed import with_blocks
from transformer_nfn.identity.causes.mistakes import Mistake
from transformer_nfn.identity.elements.acting import canonical_block
from transformer_nfn.identity.matching.neurons import match_neurons
from transformer_nfn.space import Attention, WeightBatch


def head_orders(ours: Checkpoint, theirs: Checkpoint, number: int) -> Iterator[Mistake]:
    """What the second would be of the first, if heads were moved in some tensors only.

    Args:
        ours: The first.
        theirs: The second.
        number: The first block that differs; those before it are as they should be.
    """
    for attention in ours.spec.block.attentions:
        for values in (False, True):
            stay = "O and V stayed as they were" if values else "O stayed as it was"
            yield Mistake(
                "head order",
                f"the heads were put in another order in {'Q and K' if values else 'Q, K and V'}, "
                f"and {stay}; move the rows of Q, K and V and the columns of O together",
                partial(_with_order, theirs=theirs, begin=number, of=attention, values=values),
                frozenset((attention.value, attention.output_weight)),
            )


def _with_order(
    ours: Checkpoint, theirs: Checkpoint, begin: int, of: Attention, values: bool
) -> Checkpoint:
    """O, and V if asked for, in the order that the second's queries and keys have left it in."""

    def change(number: int, block: WeightBatch) -> WeightBatch:
        if number < begin:
            return block
        back = _order(canonical_block(ours, number), canonical_block(theirs, number), of).argsort()
        tensors = dict(block.tensors)
        heads = tensors[of.output_weight]
        flat = heads.flatten(3, 4) if of.grouped else heads
        tensors[of.output_weight] = flat.index_select(3, back).view(heads.shape)
        if values:
            many = heads.shape[4] if of.grouped else 1
            tensors[of.value] = tensors[of.value].index_select(3, back[::many] // many)
        return WeightBatch(block.spec, tensors)

    return with_blocks(ours, change)


def _order(ours: WeightBatch, theirs: WeightBatch, of: Attention) -> Tensor:
    """For each head of the second the one of the first whose Q Kᵀ has the same singular values."""
    return match_neurons(_singular_values(ours, of), _singular_values(theirs, of))


def _singular_values(block: WeightBatch, of: Attention) -> Tensor:
    queries, keys = (block[name][0, 0, 0].double() for name in (of.query, of.key))
    if of.grouped:
        keys = keys.unsqueeze(1).expand(*queries.shape[:2], *keys.shape[1:]).flatten(0, 1)
        queries = queries.flatten(0, 1)
    factors = [torch.linalg.qr(part, mode="r")[1] for part in (queries, keys)]
    found: Tensor = torch.linalg.svdvals(factors[0] @ factors[1].mT)
    return found
