"""Do two networks whose weights agree also compute the same? Run both and see.

The weights were compared number by number, in a form that somebody chose; the function is what
counts. So nothing is called equivalent before both have been run, on inputs from fresh entropy and
on those of many more on which they differ most. What rounding does to the outputs is measured on
both files: every stored number is moved by up to half its last digit, several times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.running.function import run, run_roundings
from transformer_nfn.identity.running.inputs import draw_inputs
from transformer_nfn.identity.running.jumps import turning, without_jumps

#: Times of what rounding does to the outputs, all inputs together: below AGREE they agree, above
#: APART they are different functions, between the two nothing is decided. Honest copies are at
#: 0.5 to 2: rounding of few outputs spreads more than that of many.
AGREE = 2.5
APART = 4.0
#: The same for one input alone, of which one in dozens is far out by chance.
AGREE_ON_ONE = 9.0
APART_ON_ONE = 18.0
#: Where rounding itself moves the outputs by this part of their size, nothing can be confirmed.
BLURRED = 0.25
#: The same where it turns this part of the choices between experts.
TURNED = 0.1
#: Inputs that the most different ones are chosen from, as a multiple of those that are judged.
_POOL = 2
#: Roundings of each file; more where few outputs would make a chance of it, and where what few
#: roundings say is not clear: they are off by up to a half. Most before anything is left undecided:
#: where a rare rounding does much, ten say 2.9 of an honest copy that is at 1.6.
_JITTERS, MANY_JITTERS, _MOST_JITTERS = 4, 10, 40
MANY_OUTPUTS = 256
_CLEAR, _CLEAR_ON_ONE = 1.5, 4.0
#: Beyond this multiple of the limits more roundings would change nothing.
_HOPELESS = 2.0
#: Between the seeds of the roundings of one file and of the other: equal ones would not be two.
_OTHER = 10**6
#: Outputs of one token that are compared; of more, some chosen by the seed.
_OUTPUTS = 4096
#: Parts of a sequence that are judged by themselves: a change may show at its start or end only.
_PARTS = 4


@dataclass(frozen=True)
class Agreement:
    """How far the outputs of two networks are apart, in multiples of what rounding does to them.

    Attributes:
        ratio: On all inputs together or half of them, the output and part of the sequence where it
            is largest.
        ratio_on_one: On the input where it is largest.
        rounding: What rounding does to the outputs, as a part of their size.
        difference: How far the outputs are apart, as a part of their size.
        inputs: How many sequences, images or sets of patches were run.
        seed: The inputs come from it.
        turned: Which part of all choices, of experts, rounding turns.
    """

    ratio: float
    ratio_on_one: float
    rounding: float
    difference: float
    inputs: int
    seed: int
    turned: float = 0.0

    @property
    def blurred(self) -> str | None:
        """Why nothing can be confirmed, if so."""
        if self.rounding > BLURRED:
            return f"rounding alone changes the outputs by {self.rounding:.0%}"
        if self.turned > TURNED:
            return f"rounding alone turns {self.turned:.0%} of the choices between experts"
        return None

    @property
    def holds(self) -> bool:
        """Whether rounding explains all that was seen."""
        close = self.ratio <= AGREE and self.ratio_on_one <= AGREE_ON_ONE
        return close and self.blurred is None

    @property
    def in_doubt(self) -> bool:
        """Whether a better measure of rounding could still make them agree."""
        near = self.ratio <= _HOPELESS * APART and self.ratio_on_one <= _HOPELESS * APART_ON_ONE
        return near and not self.holds and self.blurred is None

    @property
    def refuted(self) -> bool:
        """Whether rounding does not explain it by far."""
        apart = self.ratio > APART or self.ratio_on_one > APART_ON_ONE
        return apart and self.blurred is None


@torch.no_grad()
def confirm(
    ours: Checkpoint, theirs: Checkpoint, *, seed: int, words: tuple[int, ...] = ()
) -> Agreement:
    """Run two networks on inputs that nobody knew before, and compare what they say.

    Args:
        ours: The first.
        theirs: The second.
        seed: Of the inputs.
        words: Some that must be among them.
    """
    given = ours, theirs
    ours, theirs = map(without_jumps, given)
    drawn = draw_inputs(ours, theirs, seed=seed, tokens=words)
    inputs = torch.cat([drawn, _most_different(ours, theirs, len(drawn) // 2, seed)])
    random = len(drawn)
    one, two = (_outputs(checkpoint, inputs, seed) for checkpoint in (ours, theirs))

    sums: list[dict[str, Tensor]] = [{}, {}]

    def agreement(first: int, last: int) -> Agreement:
        """After the roundings up to the last, of which those before the first are in the sums."""
        starts = (ours, one, seed), (theirs, two, seed + _OTHER)
        for total, (checkpoint, exact, start) in zip(sums, starts, strict=True):
            _add_squares(total, checkpoint, exact, inputs, seed, range(start + first, start + last))
        levels = [{head: total / last for head, total in totals.items()} for totals in sums]
        return _compared(one, two, levels, random, seed)

    if min(out[0].numel() for out in two.values()) < MANY_OUTPUTS:
        found = agreement(0, MANY_JITTERS)
    else:
        found = agreement(0, _JITTERS)
        if not (found.ratio <= _CLEAR and found.ratio_on_one <= _CLEAR_ON_ONE):
            found = agreement(_JITTERS, MANY_JITTERS)
    if found.in_doubt:
        found = agreement(MANY_JITTERS, _MOST_JITTERS)
    if given == (ours, theirs):  # they choose nothing
        return found
    return replace(found, turned=max(turning(each, inputs, seed) for each in given))


def _compared(
    one: dict[str, Tensor],
    two: dict[str, Tensor],
    levels: list[dict[str, Tensor]],
    random: int,
    seed: int,
) -> Agreement:
    """What is between the outputs of two networks, in multiples of what rounding does to them.

    Args:
        one: By head what the first says.
        two: The same of the second.
        levels: Of both the mean square of what rounding does to the outputs of each token.
        random: How many of the inputs, the first, were not chosen.
        seed: Of the inputs.
    """
    inputs = len(next(iter(two.values())))
    worst = Agreement(0.0, 0.0, 0.0, 0.0, inputs, seed)
    for head, theirs_out in two.items():
        apart = (one[head] - theirs_out).square().sum(dim=2)  # s t
        size = theirs_out.square().sum(dim=2)
        # What float64 itself does is no less than this.
        level = torch.maximum(levels[0][head], levels[1][head]).clamp_min(1e-300)
        level = torch.maximum(level, 1e-26 * size)
        parts = [
            _root(apart[rows, part].sum() / level[rows, part].sum())
            for rows in (slice(random), slice(random // 2), slice(random // 2, random))
            for part in _parts(apart.shape[1])
            if apart[rows, part].numel()
        ]
        singles = (apart.sum(dim=1) / level.sum(dim=1)).nan_to_num(nan=torch.inf)
        worst = Agreement(
            max(worst.ratio, *parts),
            max(worst.ratio_on_one, _root(singles.max())),
            max(worst.rounding, _root(level.sum() / size.sum().clamp_min(1e-300))),
            max(worst.difference, _root(apart.sum() / size.sum().clamp_min(1e-300))),
            inputs,
            seed,
        )
    return worst


def _most_different(ours: Checkpoint, theirs: Checkpoint, count: int, seed: int) -> Tensor:
    """Of many more random inputs those on which the outputs differ most, relative to their size."""
    pool = torch.cat([draw_inputs(ours, theirs, seed=seed + 1 + i) for i in range(_POOL)])
    one, two = (_outputs(checkpoint, pool, seed) for checkpoint in (ours, theirs))
    apart = [
        (one[head] - two[head]).flatten(1).norm(dim=1) / two[head].flatten(1).norm(dim=1)
        for head in two
    ]
    return pool[torch.stack(apart).amax(dim=0).argsort(descending=True)[: max(count, 1)]]


def _outputs(checkpoint: Checkpoint, inputs: Tensor, seed: int) -> dict[str, Tensor]:
    """By head what a network says, "s t o"; of very many outputs of a token only some."""
    return some_outputs(run(checkpoint, inputs), seed)


def some_outputs(
    outputs: Mapping[str, Tensor], seed: int, most: int = _OUTPUTS, kept: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    """By head what a network says, "s t o"; of more outputs of a token some, chosen by the seed.

    Args:
        outputs: All of them.
        seed: Of the choice.
        most: How many.
        kept: Some that must be among them.
    """
    found = {}
    for head, out in outputs.items():
        out = out.unsqueeze(1) if out.dim() == 2 else out
        if out.shape[2] > most:
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(out.shape[2], generator=generator).tolist()
            first = [number for number in kept if number < out.shape[2]]
            out = out[:, :, list(dict.fromkeys(first + order))[:most]]
        found[head] = out
    return found


def _add_squares(
    sums: dict[str, Tensor],
    checkpoint: Checkpoint,
    exact: dict[str, Tensor],
    inputs: Tensor,
    seed: int,
    roundings: range,
) -> None:
    """Add the squares of what each rounding does to the outputs of each token, "s t" by head."""
    for moved in run_roundings(checkpoint, inputs, roundings):
        for head, out in some_outputs(moved, seed).items():
            square = (out - exact[head]).square().sum(dim=2)
            sums[head] = sums[head] + square if head in sums else square


def _parts(tokens: int) -> list[slice]:
    """The whole sequence, and its parts where it is long enough to have any."""
    whole = [slice(0, tokens)]
    if tokens < 4 * _PARTS:
        return whole
    width = tokens // _PARTS
    return [*whole, *(slice(start, start + width) for start in range(0, width * _PARTS, width))]


def _root(square: Tensor) -> float:
    return float(square.nan_to_num(nan=torch.inf).sqrt())
