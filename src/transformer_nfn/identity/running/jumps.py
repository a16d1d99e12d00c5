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
from transformer_nfn.identity.running.function import run, run_roundings
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


def jumping(checkpoint: Checkpoint, inputs: Tensor, seed: int) -> float:
    """What rounding does to the outputs, jumps and all, as a part of their size."""
    exact = run(checkpoint, inputs)
    (moved,) = run_roundings(checkpoint, inputs, [seed])
    parts = [
        (moved[head] - out).norm() / out.norm().clamp_min(1e-300) for head, out in exact.items()
    ]
    return float(torch.stack(parts).max())
