"""What two networks say on the input where they differ most: for people."""

from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.running.function import run
from transformer_nfn.identity.running.inputs import SourceAndTarget
from transformer_nfn.identity.running.jumps import without_jumps
from transformer_nfn.identity.running.witness import Witness

#: The layer of question answering: a token has a score as the start of an answer, one as its end.
_SPAN = "qa_outputs"
#: Settings of a head for labels under which no single one is chosen.
_LABELS = ("regression", "multi_label_classification")


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

    Hidden states, what a pooler gives, a single number, quantities, labels that may hold together,
    and scores for the start and end of an answer are no choices. Neither are many inputs that only
    together show a difference.
    """
    inputs, head = witness.inputs, witness.head
    if witness.along is not None or not (_are_choices(ours, head) and _are_choices(theirs, head)):
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


def _are_choices(checkpoint: Checkpoint, head: str) -> bool:
    """Whether one of the outputs of a head is to be chosen, as softmax does."""
    if checkpoint.gives_hidden_states or head in (*checkpoint.poolers, *checkpoint.summaries):
        return False
    return head.rpartition(".")[2] != _SPAN and checkpoint.config.get("problem_type") not in _LABELS


def _choice(probabilities: Tensor) -> Choice:
    number = int(torch.argmax(probabilities))
    return Choice(number, float(probabilities[number]))
