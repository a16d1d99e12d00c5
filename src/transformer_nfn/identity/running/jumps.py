"""Networks that choose: a router's choice may turn where two experts are almost as good.

Rounding alone turns it then, for a few tokens of many, and the outputs jump. That is no difference
of two functions beyond rounding, and no measure of rounding either: it is all or nothing. So two
networks are compared with choices made gradually, which is the same function wherever the choice is
clear. How much the jumps themselves do is measured beside it.
"""

import copy
from dataclasses import replace

import torch

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.rounding import jittered
from transformer_nfn.identity.running.function import Notes, run_batches, run_each
from transformer_nfn.identity.running.inputs import NetInputs, draw_every_word
from transformer_nfn.space import BlockSpec

#: Scores that are no further apart than float64 knows them, and than float32 does: of the second
#: some are chance.
_EQUAL, _CLOSE, _FEW = 1e-12, 1e-6, 3


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
def turning(checkpoint: Checkpoint, inputs: NetInputs, seed: int) -> float:
    """Which part of all choices rounding turns, in the block where it is largest."""
    exact, moved = Notes(), Notes()
    run_each([checkpoint], [inputs], notes=exact)
    run_each([jittered(checkpoint, seed=seed)], [inputs], notes=moved)
    choices = zip(exact.choices, moved.choices, strict=True)
    turned = [(one != two).any(dim=-1).double() for one, two in choices]
    return max((float(each.mean()) for each in turned), default=0.0)


@torch.no_grad()
def ties(checkpoint: Checkpoint, seed: int) -> bool:
    """Whether for some word two experts are equally good, so that a loader goes by their order.

    All words are tried, or as many as there is time for, beside others at random.
    """
    if without_jumps(checkpoint) is checkpoint:  # it makes no choice
        return False
    notes = Notes()
    run_batches(checkpoint, [draw_every_word(checkpoint, seed)], notes=notes)
    return any(
        bool((each <= _EQUAL).any()) or int((each <= _CLOSE).sum()) > _FEW for each in notes.margins
    )
