"""Do two networks whose weights agree also compute the same? Run both and see.

The weights were compared number by number, in a form that somebody chose; the function is what
counts. So nothing is called equivalent before both have been run, on inputs from fresh entropy and
on those of many more on which they differ most. What rounding does to the outputs is measured on
both files: every stored number is moved by up to half its last digit, several times. And both are
run once in the arithmetic of their own dtype, since that is how they will be.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.dtypes import loader_dtypes
from transformer_nfn.identity.running.arithmetic import run_in
from transformer_nfn.identity.running.function import OutputChoice, run_batches, run_roundings
from transformer_nfn.identity.running.inputs import NetInputs, draw_inputs, pool_size
from transformer_nfn.identity.running.jumps import ties, turning, without_jumps

#: Times of what rounding does to the outputs, all inputs together: below AGREE they agree, above
#: APART they are different functions, between the two nothing is decided. Honest copies are at
#: 0.5 to 2: rounding of few outputs spreads more than that of many.
AGREE = 2.5
APART = 4.0
#: The same for one input alone, the worst of hundreds: honest copies of few outputs reach 5.4.
AGREE_ON_ONE = 6.0
APART_ON_ONE = 18.0
#: Where rounding itself moves the outputs by this part of their size, nothing can be confirmed.
BLURRED = 0.25
#: The same where it turns this part of the choices between experts.
TURNED = 0.1
#: The same where a file run in its own dtype is off by this many times what rounding its numbers
#: does, and by as many times more than the other: honest copies are at 1 to 4, both of them.
LOST, LOST_MORE = 6.0, 3.0
#: Inputs that the most different ones are chosen from, their length (what one token does is lost
#: among the many of a long sequence), how many are chosen, and roundings to choose them by.
_POOL, _SHORT, _CHOSEN, _FEW_JITTERS = 128, 24, 8, 1
#: Roundings of each file; more where few outputs would make a chance of it, and where what few
#: roundings say is not clear: they are off by up to a half. Most before anything is left undecided:
#: where a rare rounding does much, ten say 2.9 of an honest copy that is at 1.6.
_JITTERS, MANY_JITTERS, _MOST_JITTERS = 4, 10, 40
MANY_OUTPUTS = 256
_CLEAR, _CLEAR_ON_ONE = 1.5, 4.0
#: Beyond this multiple of the limits more roundings would change nothing.
_HOPELESS = 2.0
#: Between the seeds of the roundings of one file and of the other: equal ones would not be two. And
#: to those by which inputs are chosen from those by which they are judged.
_OTHER, _BEFORE = 10**6, 10**3
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
        tied: For some word two experts are equally good: whoever runs it goes by their order.
        lost: How far the outputs of each file are off where every result on the way is stored in
            its own dtype, in multiples of what rounding does to it; infinite where a number is
            beyond that dtype.
    """

    ratio: float
    ratio_on_one: float
    rounding: float
    difference: float
    inputs: int
    seed: int
    turned: float = 0.0
    tied: bool = False
    lost: tuple[float, float] = (0.0, 0.0)

    @property
    def blurred(self) -> str | None:
        """Why nothing can be confirmed, if so."""
        if self.rounding > BLURRED:
            return f"rounding alone changes the outputs by {self.rounding:.0%}"
        if max(self.lost) == math.inf:
            return "numbers on the way are beyond all that the stored dtype can hold"
        if max(self.lost) > max(LOST, LOST_MORE * min(self.lost)):
            times = f"{max(self.lost):.2g} times what rounding the weights does"
            return f"a run in the stored dtype itself is off by {times}, of one file only"
        if self.tied:
            return "two experts are equally good for some word, and a loader goes by their order"
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
    networks = without_jumps(ours), without_jumps(theirs)
    drawn = draw_inputs(*networks, seed=seed, tokens=words)
    said = _Said(networks, [drawn, _most_different(networks, seed)], seed)
    found = _agreement(said, MANY_JITTERS if said.few else _JITTERS)
    if not (found.ratio <= _CLEAR and found.ratio_on_one <= _CLEAR_ON_ONE):
        found = _agreement(said, MANY_JITTERS)
    if found.in_doubt:
        found = _agreement(said, _MOST_JITTERS)
    if networks == (ours, theirs):  # they choose nothing
        return found
    turned = max(turning(each, drawn, seed) for each in (ours, theirs))
    return replace(found, turned=turned, tied=any(ties(each, seed) for each in (ours, theirs)))


class _Said:
    """What two networks say on batches of inputs, and what rounding does to it.

    Args:
        networks: Both of them.
        batches: Of inputs, as `function.run` takes them.
        seed: Of the choice where there are very many outputs.
        first: Seed of the first rounding.
    """

    def __init__(
        self,
        networks: tuple[Checkpoint, Checkpoint],
        batches: Sequence[NetInputs],
        seed: int,
        first: int = 0,
    ) -> None:
        self.networks, self.batches, self.seed = networks, batches, seed
        self._choice = OutputChoice(seed, _OUTPUTS)
        self._outputs = [
            [
                some_outputs(out, self._choice)
                for out in run_batches(network, batches, choice=self._choice)
            ]
            for network in networks
        ]
        self._starts = seed + first, seed + first + _OTHER
        self._sums: list[list[dict[str, Tensor]]] = [[{} for _ in batches] for _ in networks]
        self._roundings = 0

    @property
    def few(self) -> bool:
        """Whether an input has so few outputs that what rounding does to them is chance."""
        return min(out[0].numel() for out in self._outputs[1][0].values()) < MANY_OUTPUTS

    def measure(self, roundings: int) -> None:
        """What rounding does to both, by so many roundings; those already measured are kept."""
        cases = zip(self.networks, self._outputs, self._starts, self._sums, strict=True)
        for network, exact, start, sums in cases:
            seeds = range(start + self._roundings, start + roundings)
            for moved in run_roundings(network, self.batches, seeds, self._choice):
                for plain, given, total in zip(exact, moved, sums, strict=True):
                    for head, out in some_outputs(given, self._choice).items():
                        square = (out - plain[head]).square().sum(dim=2)
                        total[head] = total[head] + square if head in total else square
        self._roundings = max(self._roundings, roundings)

    @cached_property
    def _lost(self) -> list[list[tuple[bool, list[dict[str, Tensor]]]]]:
        """What arithmetic in each dtype does to the outputs of each file, by batch and head.

        And whether nothing should be lost in that dtype.
        """
        found = []
        for network, exact in zip(self.networks, self._outputs, strict=True):
            own = []
            for dtype, held in loader_dtypes(network).items():
                outputs = run_in(dtype, network, self.batches, self._choice)
                squares = [
                    {
                        head: (out - plain[head]).square().sum()
                        for head, out in some_outputs(given, self._choice).items()
                    }
                    for given, plain in zip(outputs, exact, strict=True)
                ]
                own.append((held, squares))
            found.append(own)
        return found

    def lost(self) -> tuple[float, float]:
        """What arithmetic does to each file's outputs, where it is most, in times of rounding."""
        found = []
        for lost in self._lost:
            ratios = [0.0]
            for batch in range(len(self.batches)):
                measured = zip(self._outputs[1][batch], self.squares(batch), strict=True)
                for head, (_, level, size) in measured:
                    for held, squares in lost:
                        off = squares[batch][head]
                        if held or _root(off / size.sum()) > BLURRED:
                            ratios.append(_root(off / level.sum()))
            found.append(max(ratios))
        return found[0], found[1]

    def squares(self, batch: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        """By head the difference, the mean of what rounding does, and the outputs: "s t" each."""
        found = []
        one, two = (outputs[batch] for outputs in self._outputs)
        for head, out in two.items():
            size = out.square().sum(dim=2)
            levels = [sums[batch][head] / self._roundings for sums in self._sums]
            # What float64 itself does is no less than this.
            level = torch.maximum(*levels).clamp_min(1e-300)
            apart = (one[head] - out).square().sum(dim=2)
            found.append((apart, torch.maximum(level, 1e-26 * size), size))
        return found


def _agreement(said: _Said, roundings: int) -> Agreement:
    """What is between the outputs of two networks, in multiples of what rounding does to them.

    Args:
        said: On inputs drawn at random, and on those of many on which they differ most.
        roundings: How many to measure.
    """
    said.measure(roundings)
    drawn, chosen = said.squares(0), said.squares(1)
    singles = [apart.sum(dim=1) / level.sum(dim=1) for apart, level, _ in (*drawn, *chosen)]
    ratios, rounding, difference = [], [], []
    for apart, level, size in drawn:
        total = size.sum().clamp_min(1e-300)
        rounding.append(_root(level.sum() / total))
        difference.append(_root(apart.sum() / total))
        half = len(apart) // 2
        ratios += [
            _root(apart[rows, part].sum() / level[rows, part].sum())
            for rows in (slice(None), slice(half), slice(half, None))
            for part in _parts(apart.shape[1])
            if apart[rows, part].numel()
        ]
    return Agreement(
        max(ratios),
        max(_root(single.max()) for single in singles),
        max(rounding),
        max(difference),
        sum(len(inputs) for inputs in said.batches),
        said.seed,
        lost=said.lost(),
    )


def _most_different(networks: tuple[Checkpoint, Checkpoint], seed: int) -> NetInputs:
    """Of many more random inputs those on which the outputs differ most beyond rounding."""
    count = pool_size(networks[1], _SHORT, _POOL)
    inputs = draw_inputs(*networks, seed=seed + 1, count=count, length=_SHORT)
    pool = _Said(networks, [inputs], seed, first=_BEFORE)
    pool.measure(_FEW_JITTERS)
    beyond = []
    for apart, level, _ in pool.squares(0):
        each = level.sum(dim=1)
        # Few roundings say little of one input, so the mean of all is mixed in.
        beyond.append(apart.sum(dim=1) / (each + each.mean()))
    order = torch.stack(beyond).amax(dim=0).nan_to_num(nan=torch.inf).argsort(descending=True)
    return inputs[order[:_CHOSEN]]


def some_outputs(outputs: Mapping[str, Tensor], choice: OutputChoice) -> dict[str, Tensor]:
    """By head what a network says, "s t o"; of more outputs of a token those that are chosen."""
    found = {}
    for head, out in outputs.items():
        out = out.unsqueeze(1) if out.dim() == 2 else out
        chosen = choice.of(out.shape[2])
        found[head] = out if chosen is None else out[:, :, chosen]
    return found


def _parts(tokens: int) -> list[slice]:
    """The whole sequence, and its parts where it is long enough to have any."""
    whole = [slice(0, tokens)]
    if tokens < 4 * _PARTS:
        return whole
    width = tokens // _PARTS
    return [*whole, *(slice(start, start + width) for start in range(0, width * _PARTS, width))]


def _root(square: Tensor) -> float:
    return float(square.nan_to_num(nan=torch.inf).sqrt())
