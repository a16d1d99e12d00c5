"""Attention heads that changed their order in some of a block's tensors and not in others."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.causes.changed import with_blocks
from transformer_nfn.identity.causes.mistakes import Mistake
from transformer_nfn.identity.elements.acting import canonical_block
from transformer_nfn.identity.matching.assignment import linear_sum_assignment
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
        one, two = (_heads(canonical_block(c, number), of) for c in (ours, theirs))
        queries = _paired(_singular_values(one[0], one[1]), _singular_values(two[0], two[1]))
        # What the second's heads write shows whose O each has, whatever order they are in.
        written = _singular_values(two[2], two[3])
        if values:
            outputs = _paired(_singular_values(one[2], one[3]), written)
        else:
            each = [_singular_values(one[2][head : head + 1], one[3]) for head in queries.tolist()]
            outputs = _paired(torch.stack(each), written)
        tensors = dict(block.tensors)
        heads = tensors[of.output_weight]
        flat = heads.flatten(3, 4) if of.grouped else heads
        own = outputs[queries.argsort()]
        tensors[of.output_weight] = flat.index_select(3, own).view(heads.shape)
        if values:
            many = heads.shape[4] if of.grouped else 1
            tensors[of.value] = tensors[of.value].index_select(3, own[::many] // many)
        return WeightBatch(block.spec, tensors)

    return with_blocks(ours, change)


def _heads(block: WeightBatch, of: Attention) -> list[Tensor]:
    """Q, K, V and O of each head, with what they read or write first; groups share K and V."""
    Q, K, V, O = (
        block[name][0, 0, 0].double() for name in (of.query, of.key, of.value, of.output_weight)
    )
    if of.grouped:
        many = Q.shape[1]
        Q, O = Q.flatten(0, 1), O.flatten(0, 1)
        K, V = (part.repeat_interleave(many, dim=0) for part in (K, V))
    return [Q, K, V, O.mT]


def _singular_values(one: Tensor, two: Tensor) -> Tensor:
    """Of the product of each head's two matrices "h x k", which no symmetry changes."""
    factors = [torch.linalg.qr(part, mode="r")[1] for part in (one, two)]
    found: Tensor = torch.linalg.svdvals(factors[0] @ factors[1].mT)
    return found


def _paired(ours: Tensor, theirs: Tensor) -> Tensor:
    """For each of the second's heads the one of the first that is closest, each once.

    Args:
        ours: "h s", or "t h s" if it depends on the second's head.
        theirs: "t s".
    """
    cost = (ours - theirs.unsqueeze(1)).norm(dim=-1)
    return torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
