"""Experts of one block against those of another: which is which, and which neuron of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.identity.matching.neurons import back, match_neurons, rms, scale_between
from transformer_nfn.space import WeightBatch


def match_experts(ours: WeightBatch, theirs: WeightBatch) -> dict[str, Tensor]:
    """The parts of a group element that carry our experts to theirs, all in the same basis.

    Experts are told by their column of the router and the sum of their gates, which the order of
    their neurons does not change.

    Args:
        ours: The first block, canonical, in the bases of the second.
        theirs: The second.
    """
    order = match_neurons(_shadows(ours), _shadows(theirs))
    inside, scales = [], []
    for number, own in enumerate(order.tolist()):
        gates = [
            batch["gate"][0, 0, 0, place].T for batch, place in ((ours, own), (theirs, number))
        ]
        neurons = match_neurons(*gates)
        up, their_up = (_rows(ours, "up", own)[neurons], _rows(theirs, "up", number))
        down, their_down = (_rows(ours, "down", own)[neurons], _rows(theirs, "down", number))
        inside.append(neurons)
        scales.append(back(scale_between(up, their_up, down, their_down), neurons))
    found = {"u": order, "a": back(torch.stack(inside), order)}
    if "s" in theirs.spec.block.axes:
        found["s"] = back(torch.stack(scales), order)
    return found


def _shadows(batch: WeightBatch) -> Float[Tensor, "u p"]:
    """What an expert is told by."""
    router, gates = batch["router"][0, 0, 0].T, batch["gate"][0, 0, 0].sum(dim=-1)
    return torch.cat([part / rms(part) for part in (router, gates)], dim=1)


def _rows(batch: WeightBatch, name: str, expert: int) -> Float[Tensor, "a p"]:
    """A row for each neuron of what an expert reads or writes."""
    tensor = batch[name][0, 0, 0, expert]
    reads = name in batch.spec.block.readers
    return tensor.flatten(1).T if reads else tensor.flatten(1)  # z a (s), a (s) x
