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
from transformer_nfn.identity.running.inputs import NetInputs, draw_every_word, pool_size, split
from transformer_nfn.space import BlockSpec

#: Scores that are no further apart than the softmax of a loader, in float32, knows them.
_KNOWN = 2.5e-7


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

    All words are tried, or as many as there is time for, at the start of a sequence and among
    others.
    """
    if without_jumps(checkpoint) is checkpoint:  # it makes no choice
        return False
    words = draw_every_word(checkpoint, seed)
    for inputs in (words, words.flatten()[:, None]):
        for some in split(inputs, pool_size(checkpoint, inputs.shape[1], len(inputs))):
            notes = Notes()
            run_batches(checkpoint, [some], notes=notes, as_stored=True)
            if any(bool((margins <= _KNOWN).any()) for margins in notes.margins):
                return True
    return False
