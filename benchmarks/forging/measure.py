"""How far the outputs of two files are apart, in units of what rounding does to both.

A forgery is a pair whose outputs, on 256 inputs that the verdict never sees, differ by more than
four times what moving every stored number by up to half its last digit does: over all inputs. One
input alone counts from eight times on, since honest copies with few outputs reach five.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.forging.draft import jittered
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import run, without_jumps
from transformer_nfn.space import Positions

LINE = 4.0
#: On one input alone of 256 honest copies with few outputs are at up to 5.4.
LINE_ON_ONE = 8.0
INPUTS = 256
LENGTH = 24
#: Roundings of each file. Over all inputs each of them runs on a sixth, which is as good and
#: six times as cheap; inputs that stand out are run again with other roundings, all of them.
JITTERS = 6
#: Inputs, and their seed, on which the size of a forgery is chosen: none of the 256.
CALIBRATION, CALIBRATED = 32, 3
OUTSTANDING = 8
#: Where one input alone is beyond the line: of 256 inputs of an honest copy with few outputs, one
#: may seem to be if its rounding is known from few.
MANY = 24
#: Beyond this multiple of the line few roundings are enough.
_CLEAR = 1.5
#: Below this part of the line an input does not stand out.
_NEAR = 0.75
#: Seeds of the inputs and roundings: none that the package uses.
_SEED = 7_300_000_000


@dataclass(frozen=True)
class Apart:
    """How far two files are apart.

    Attributes:
        over_all: Root mean square over all inputs, in units of rounding; of the worst head.
        on_one: The same on the one input where it is largest.
        relative: The root mean square of the difference relative to that of the outputs.
    """

    over_all: float
    on_one: float
    relative: float

    @property
    def forged(self) -> bool:
        return self.over_all > LINE or self.on_one > LINE_ON_ONE


def draw(checkpoint: Checkpoint, count: int, length: int, seed: int) -> Tensor:
    """Inputs of a checkpoint: token ids, images, or patches."""
    generator = torch.Generator().manual_seed(_SEED + seed)
    settings = checkpoint.settings
    sizes = dict(settings.sizes)
    if "image" in sizes:
        shape = (count, sizes["colours"], sizes["image"], sizes["image"])
        return torch.randn(shape, generator=generator)
    if "tokens" in sizes:
        width = checkpoint.D
        if checkpoint.writers:
            width = checkpoint.files.entry(next(iter(checkpoint.writers))).shape[0]
        return torch.randn((count, sizes["tokens"], width), generator=generator)
    words = next(iter(checkpoint.writers))
    for step in checkpoint.family.embeddings:
        if isinstance(step, Positions):
            rows = checkpoint.stored.shape(step.name)[0]
            length = min(length, rows - step.first_row(checkpoint.stored))
    vocabulary = checkpoint.files.entry(words).shape[0]
    return torch.randint(0, vocabulary, (count, length), generator=generator)


@dataclass(frozen=True)
class Profile:
    """What one file says on the inputs, by head, and what rounding does to it.

    Attributes:
        outputs: "s o".
        levels: Squares of what one rounding does to the outputs, for each input "s".
    """

    outputs: Mapping[str, Tensor]
    levels: Mapping[str, Tensor]


def profile(checkpoint: Checkpoint, inputs: Tensor) -> Profile:
    """Run a file on all inputs, and its roundings on a sixth of them each."""
    exact = flat_outputs(checkpoint, inputs)
    levels = {head: torch.zeros(len(inputs), dtype=torch.float64) for head in exact}
    for jitter in range(JITTERS):
        part = slice(jitter, None, JITTERS)
        moved = flat_outputs(jittered(checkpoint, _SEED + jitter), inputs[part])
        for head, out in moved.items():
            levels[head][part] = (out - exact[head][part]).square().sum(dim=1)
    return Profile(exact, levels)


def apart(
    ours: Checkpoint, theirs: Checkpoint, inputs: Tensor, first: Profile, second: Profile
) -> Apart:
    """Compare two files on the inputs that both were run on."""
    found = Apart(0.0, 0.0, 0.0)
    for head, one in first.outputs.items():
        two = second.outputs[head]
        squares = (one - two).square().sum(dim=1)
        levels = torch.stack([profile.levels[head] for profile in (first, second)])
        floor = 1e-26 * one.square().sum(dim=1) + 1e-300
        level = torch.maximum(levels.mean(dim=1).max(), floor.mean())
        over_all = (squares.mean() / level).sqrt().item()
        # One rounding says little of one input, so the mean of all is mixed in.
        mixed = ((levels + levels.mean(dim=1, keepdim=True)) / 2).amax(dim=0)
        each = (squares / torch.maximum(mixed, floor)).nan_to_num(nan=torch.inf)
        on_one = each.max().sqrt().item()
        if (
            over_all <= LINE and on_one > _NEAR * LINE_ON_ONE
        ):  # it may decide, so it is measured well
            worst = each.topk(min(OUTSTANDING, len(each))).indices
            for jitters in (JITTERS, MANY):
                again = rounding_levels(ours, theirs, inputs[worst], head, jitters)
                ratio = squares[worst] / torch.maximum(again, floor[worst])
                on_one = ratio.nan_to_num(nan=torch.inf).max().sqrt().item()
                if not LINE_ON_ONE < on_one < _CLEAR * LINE_ON_ONE:
                    break
                worst = worst[ratio > LINE_ON_ONE**2]
        relative = (squares.mean() / one.square().sum(dim=1).mean()).sqrt().item()
        found = Apart(
            max(found.over_all, over_all),
            max(found.on_one, on_one),
            max(found.relative, relative),
        )
    return found


def rounding_levels(
    ours: Checkpoint, theirs: Checkpoint, inputs: Tensor, head: str, jitters: int
) -> Tensor:
    """For each input the larger of both files' mean squares, by roundings not used before."""
    found = []
    for checkpoint in (theirs, ours):
        exact = flat_outputs(checkpoint, inputs)[head]
        total = torch.zeros(len(inputs), dtype=torch.float64)
        for jitter in range(jitters):
            rounded = jittered(checkpoint, _SEED + 1000 * jitters + jitter)
            moved = flat_outputs(rounded, inputs)[head]
            total += (moved - exact).square().sum(dim=1)
        found.append(total / jitters)
    return torch.stack(found).amax(dim=0)


def flat_outputs(checkpoint: Checkpoint, inputs: Tensor) -> dict[str, Tensor]:
    """What a file says, "s o" by head."""
    # Where a router's choice is close, rounding alone turns it.
    given = run(without_jumps(checkpoint), inputs)
    return {head: out.flatten(1) for head, out in given.items()}
