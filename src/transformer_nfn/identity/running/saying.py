"""What two networks say on the input where they differ most: for people."""

from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.running.function import run
from transformer_nfn.identity.running.inputs import SourceAndTarget
from transformer_nfn.identity.running.jumps import without_jumps
from transformer_nfn.identity.running.witness import Witness


class Choice(NamedTuple):
    """The output that a network prefers, and its probability."""

    output: int
    probability: float


class Saying(NamedTuple):
    """What both say.

    Attributes:
        position: Of the token where they differ most; None where a whole input has one answer.
        first: What the first network prefers there.
        second: What the second does.
        words: Whether outputs are words.
    """

    position: int | None
    first: Choice
    second: Choice
    words: bool


def what_both_say(ours: Checkpoint, theirs: Checkpoint, witness: Witness) -> Saying | None:
    """The preferred outputs of both on a witness; None where outputs are not choices.

    Hidden states, what a pooler gives and a single number are no choices. Neither are many inputs
    that only together show a difference.
    """
    inputs, head = witness.inputs, witness.head
    if witness.along is not None or head in ours.poolers or ours.gives_hidden_states:
        return None
    batch = (
        SourceAndTarget(inputs.source[None], inputs.target[None])
        if isinstance(inputs, SourceAndTarget)
        else inputs[None]
    )
    one, two = (run(without_jumps(net), batch)[head][0] for net in (ours, theirs))
    outputs = one.shape[-1]
    if outputs < 2 or one.shape != two.shape:
        return None
    first, second = (said.reshape(-1, outputs).softmax(dim=-1) for said in (one, two))
    if not (first.isfinite().all() and second.isfinite().all()):
        return None
    place = int((first - second).abs().sum(dim=-1).argmax())
    words = ours.words is not None and outputs == ours.files.entry(ours.words).shape[0]
    choices = (_choice(first[place]), _choice(second[place]))
    return Saying(place if len(first) > 1 else None, *choices, words)


def _choice(probabilities: Tensor) -> Choice:
    number = int(torch.argmax(probabilities))
    return Choice(number, float(probabilities[number]))
