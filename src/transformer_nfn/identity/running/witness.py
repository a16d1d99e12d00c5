"""An input on which two functions differ by more than rounding explains."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.running.confirmation import (
    MANY_JITTERS,
    MANY_OUTPUTS,
    some_outputs,
)
from transformer_nfn.identity.running.function import OutputChoice, run, run_roundings
from transformer_nfn.identity.running.inputs import (
    NUMBERS,
    TOKENS,
    NetInputs,
    draw_inputs,
    longest,
    parts_of,
    split,
    widest,
)
from transformer_nfn.identity.running.jumps import without_jumps
from transformer_nfn.space import WeightBatch

#: How many times what one rounding does to the outputs counts as another function: on all inputs
#: together, and on one of them. A network and its rounding lie between 0.3 and 2, and on one input
#: of dozens at up to 6, where there are few outputs.
BEYOND = 4.0
BEYOND_ON_ONE = 8.0
#: The same along one direction, that in which the suspected weights move the outputs. There
#: rounding is normally distributed, with this many standard deviations at the limit.
BEYOND_ALONG = 5.0
_MANY_SEQUENCES = 128
#: Inputs among which those are chosen that the suspected weights matter most for, and the number
#: of multiplications that this choice may cost.
_POOL = 2048
_POOL_COST = 3e12
# Tokens of these inputs, and how many sequences there are of those that are longer than usual.
_SHORT = 12
_FEW_SEQUENCES = 4
_JITTERS = 3
#: Roundings of each network: to choose a direction apart from them, and to judge it.
_KNOWN = 24
_UNKNOWN = 12
_RIDGE = 0.03
#: A vocabulary for each token of thousands of sequences, dozens of times, would be tens of
#: gigabytes: so many outputs of a token are kept in any case.
_LEAST_OUTPUTS = 16
#: Which outputs are looked at where there are too many; whoever knows it cannot hide a difference
#: of weights there, only the input that would show it.
_CHOICE = 0


@dataclass(frozen=True)
class Witness:
    """One input, and what both say.

    Attributes:
        inputs: One sequence of token ids, one image, or the patches of one; or many of them, where
            only all together show it.
        head: The output where they differ most.
        ours: What the first says there, the entry that differs most.
        theirs: What the second says.
        difference: The distance of all outputs of this head, relative to their size.
        ratio: The distance as a multiple of what rounding the stored weights does.
        overall: The same over all inputs that were tried, not only this one.
        along: Their difference along that which the suspected weights make, as a multiple of what
            rounding does in this direction; None if no weights are suspected.
        seed: The inputs come from it.
    """

    inputs: NetInputs
    head: str
    ours: float
    theirs: float
    difference: float
    ratio: float
    overall: float
    along: float | None
    seed: int

    @property
    def strength(self) -> float:
        """How far beyond rounding it is: 1 is the limit."""
        plain = max(self.overall / BEYOND, self.ratio / BEYOND_ON_ONE)
        return max(plain, (self.along or 0.0) / BEYOND_ALONG)

    @property
    def beyond_rounding(self) -> bool:
        """Whether rounding does not explain it."""
        return self.strength > 1


def find_witness(
    ours: Checkpoint,
    theirs: Checkpoint,
    *,
    seed: int,
    tokens: tuple[int, ...] = (),
    positions: int = 0,
) -> Witness:
    """The input, among random ones, on which two networks differ most beyond rounding.

    What rounding does is measured, on both networks, several times: every stored number moved by
    up to half its last digit.

    Args:
        ours: The first network.
        theirs: The second.
        seed: Of the inputs.
        tokens: Words that are suspected.
        positions: Tokens up to this place are suspected: a few long sequences then.
    """
    ours, theirs = map(without_jumps, (ours, theirs))
    few = positions > TOKENS
    count, length = (_FEW_SEQUENCES, positions) if few else (None, TOKENS)
    inputs = draw_inputs(ours, theirs, seed=seed, tokens=tokens, count=count, length=length)
    one, two, noise = _outputs(ours, theirs, inputs, _JITTERS, tokens)
    if min(out.shape[1] for out in two.values()) < MANY_OUTPUTS:  # then three may be no measure
        one, two, noise = _outputs(ours, theirs, inputs, MANY_JITTERS, tokens)
    best = None
    for head, jitters in noise.items():
        difference, size = one[head] - two[head], two[head].norm(dim=1)
        level = jitters.square().sum(dim=3).mean(dim=1).amax(dim=0).sqrt()
        level = torch.maximum(level, 1e-13 * size + 1e-300)  # what float64 itself does
        ratio = (difference.norm(dim=1) / level).nan_to_num(nan=torch.inf)
        overall = (difference.norm() / level.norm()).nan_to_num(nan=torch.inf)
        row = int(ratio.argmax())
        ratios = ratio[row].item(), overall.item()
        found = _witness(inputs[row], head, one[head][row], two[head][row], ratios, None, seed)
        best = found if best is None or found.strength > best.strength else best
    assert best is not None
    return best


def find_faint_witness(
    ours: Checkpoint,
    theirs: Checkpoint,
    repaired: Mapping[int, WeightBatch],
    *,
    seed: int,
) -> Witness:
    """Inputs on which two networks differ beyond rounding in the way a suspicion predicts.

    One neuron among many may move the outputs by less than the rounding of all others does. But
    how the outputs would change if that neuron were the first network's can be computed, and of
    that direction there is a part that rounding hardly reaches.

    Args:
        ours: The first network.
        theirs: The second.
        repaired: Canonical blocks of the second with the suspected weights of the first.
        seed: Of the inputs.
    """
    ours, theirs = map(without_jumps, (ours, theirs))
    size = sum(torch.Size(entry.shape).numel() for entry in theirs.files.entries.values())
    pool = int(min(_POOL, max(_MANY_SEQUENCES, _POOL_COST / (size * _SHORT))))
    inputs = draw_inputs(ours, theirs, seed=seed, count=pool, length=_SHORT)
    # The choice looks at the prediction only, so what comes out is not bent by it.
    effects = []
    for some in _slices(theirs, inputs):
        plain, changed = run(theirs, some), run(theirs, some, repaired)
        apart = [_relative(changed[head], plain[head]) for head in plain]
        effects.append(torch.stack(apart).amax(dim=0))
    inputs = inputs[torch.cat(effects).argsort(descending=True)[:_MANY_SEQUENCES]]
    one, two, noise = _outputs(ours, theirs, inputs, _KNOWN + _UNKNOWN)
    expected = _said(theirs, inputs, _KNOWN + _UNKNOWN, repaired)
    best = None
    for head, jitters in noise.items():
        difference = (one[head] - two[head]).flatten()
        flat = jitters.flatten(2)
        known, unknown = flat[:, :_KNOWN], flat[:, _KNOWN:]
        way = _apart((expected[head] - two[head]).flatten(), known.flatten(0, 1))
        # Judged by roundings that had no part in the choice of the direction.
        level = (unknown @ way).square().mean(dim=1).amax().sqrt()
        floor = 1e-13 * way.norm() * two[head].norm() + 1e-300
        along = (difference @ way / torch.maximum(level, floor)).item()
        spread = unknown.square().sum(dim=2).mean(dim=1).amax().sqrt().clamp_min(1e-300)
        ratio = (difference.norm() / spread).item()
        outputs = one[head].flatten(), two[head].flatten()
        found = _witness(inputs, head, *outputs, (ratio, ratio), along, seed)
        best = found if best is None or found.strength > best.strength else best
    assert best is not None
    return best


def _apart(way: Float[Tensor, " o"], noise: Float[Tensor, "j o"]) -> Float[Tensor, " o"]:
    """The part of a direction that known roundings hardly reach."""
    gram = noise @ noise.T
    gram = gram + _RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    reached: Tensor = noise.T @ torch.linalg.lstsq(gram, (noise @ way)[:, None]).solution[:, 0]
    return way - reached


def _outputs(
    ours: Checkpoint,
    theirs: Checkpoint,
    inputs: NetInputs,
    jitters: int,
    kept: tuple[int, ...] = (),
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """What both say, "s o" for each head, and what jitter does to each of them, "2 j s o".

    Of very many outputs of a token some are chosen, the same everywhere, and all that must be kept.
    """
    exact = [_said(checkpoint, inputs, jitters, kept=kept) for checkpoint in (ours, theirs)]
    noise: dict[str, list[Tensor]] = {head: [] for head in exact[0]}
    choice = OutputChoice(_CHOICE, _most_outputs(inputs, jitters), kept)
    for checkpoint, outputs in zip((ours, theirs), exact, strict=True):
        parts = []
        for some in _slices(checkpoint, inputs):
            moved = run_roundings(checkpoint, [some], range(jitters), choice)
            parts.append([some_outputs(given, choice) for (given,) in moved])
        for head in noise:
            each = [torch.cat([part[j][head] for part in parts]) for j in range(jitters)]
            noise[head].append(torch.stack([out.flatten(1) - outputs[head] for out in each]))
    return exact[0], exact[1], {head: torch.stack(found) for head, found in noise.items()}


def _said(
    checkpoint: Checkpoint,
    inputs: NetInputs,
    jitters: int,
    blocks: Mapping[int, WeightBatch] | None = None,
    kept: tuple[int, ...] = (),
) -> dict[str, Float[Tensor, "s o"]]:
    """What a network says by head, of outputs that there is room for as many times."""
    choice = OutputChoice(_CHOICE, _most_outputs(inputs, jitters), kept)
    parts = [
        some_outputs(run(checkpoint, some, blocks, choice), choice)
        for some in _slices(checkpoint, inputs)
    ]
    return {head: torch.cat([part[head] for part in parts]).flatten(1) for head in parts[0]}


def _most_outputs(inputs: NetInputs, jitters: int) -> int:
    """Of how many outputs of a token two networks and their roundings are kept."""
    tokens = len(inputs) * parts_of(inputs)[-1].shape[-1]
    return max(_LEAST_OUTPUTS, NUMBERS // (tokens * 2 * (jitters + 1)))


def _slices(checkpoint: Checkpoint, inputs: NetInputs) -> Iterator[NetInputs]:
    """So many inputs at a time that what is said of them fits into memory."""
    return split(inputs, max(1, NUMBERS // (4 * longest(inputs) * widest(checkpoint))))


def _relative(a: Float[Tensor, "s *o"], b: Float[Tensor, "s *o"]) -> Float[Tensor, " s"]:
    distance: Tensor = (a - b).flatten(1).norm(dim=1)
    size: Tensor = b.flatten(1).norm(dim=1).clamp_min(1e-300)
    return distance / size


def _witness(
    inputs: NetInputs,
    head: str,
    one: Float[Tensor, " o"],
    two: Float[Tensor, " o"],
    ratios: tuple[float, float],
    along: float | None,
    seed: int,
) -> Witness:
    entry = int((one - two).abs().argmax())
    return Witness(
        inputs,
        head,
        one[entry].item(),
        two[entry].item(),
        ((one - two).norm() / two.norm()).item(),
        *ratios,
        along,
        seed,
    )
