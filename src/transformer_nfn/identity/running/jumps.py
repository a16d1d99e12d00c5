"""Networks that choose: a router's choice may turn where two experts are almost as good.

Rounding alone turns it then, for a few tokens of many, and the outputs jump. That is no difference
of two functions beyond rounding, and no measure of rounding either: it is all or nothing. So two
networks are compared with choices made gradually, which is the same function wherever the choice is
clear. How much the jumps themselves do is measured beside it.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.rounding import jittered
from transformer_nfn.identity.running.function import Notes, run_each
from transformer_nfn.space import BlockSpec


def without_jumps(checkpoint: Checkpoint) -> Checkpoint:
    """The same network, its choices made gradually; itself if it makes none."""
    block = checkpoint.spec.block
    halves = tuple(replace(half, part=half.part.without_jumps()) for half in block.halves)
    if halves == block.halves:
        return checkpoint
    smooth = copy.copy(checkpoint)
    smooth.spec = BlockSpec(replace(block, halves=halves), **checkpoint.spec.sizes)
    return smooth


@torch.no_grad()
def turning(checkpoint: Checkpoint, inputs: Tensor, seed: int) -> float:
    """Which part of all choices rounding turns, or are ties, in the block where it is largest."""
    exact, moved = Notes(), Notes()
    run_each([checkpoint], [inputs], notes=exact)
    run_each([jittered(checkpoint, seed=seed)], [inputs], notes=moved)
    choices = zip(exact.choices, moved.choices, strict=True)
    # NaN, a tie, is equal to nothing.
    turned = [(one != two).any(dim=-1).double() for one, two in choices]
    return max((float(each.mean()) for each in turned), default=0.0)
