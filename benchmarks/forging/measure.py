"""How far the outputs of two files are apart, in units of what rounding does to both.

A forgery is a pair whose outputs, on 256 inputs that the verdict never sees, differ by more than
four times what moving every stored number by up to half its last digit does: over all inputs. One
input alone counts from twelve times on, twice what the verdict tolerates there: the worst of 256 is
chance, one pair was at 8.3 on these inputs and at 2.9 to 6.1 on six other sets of them.
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
LINE_ON_ONE = 12.0
INPUTS = 256
LENGTH = 24
#: Roundings of each file; more where the result is near a line: where few inputs feel a change far
#: more than others, six may be off by a half, and of 256 inputs of an honest copy with few outputs
#: one may seem to stand out.
JITTERS, MANY = 6, 24
#: Near a line: from this part of it to this multiple.
_NEAR, _CLEAR = 0.6, 2.0
#: Inputs that stand out most.
OUTSTANDING = 8
#: Inputs, and their seed, on which the size of a forgery is chosen: none of the 256.
CALIBRATION, CALIBRATED = 32, 3
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

    @property
    def near_a_line(self) -> bool:
        """Whether a better measure of rounding could make another thing of it."""
        parts = self.over_all / LINE, self.on_one / LINE_ON_ONE
        return max(parts) > _NEAR and not (parts[0] > _CLEAR or min(parts) > _CLEAR)


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
    streams = (2,) if checkpoint.encoder is not None else ()
    return torch.randint(0, vocabulary, (count, *streams, length), generator=generator)


@dataclass(frozen=True)
class Profile:
    """What one file says on the inputs, by head, and what rounding does to it.

    Attributes:
        outputs: "s o".
        levels: Squares of what one rounding does to the outputs, for each input "s".
    """

    outputs: Mapping[str, Tensor]
    levels: Mapping[str, Tensor]


def profile(checkpoint: Checkpoint, inputs: Tensor, jitters: int = JITTERS) -> Profile:
    """Run a file and its roundings on all inputs."""
    exact = flat_outputs(checkpoint, inputs)
    levels = {head: torch.zeros(len(inputs), dtype=torch.float64) for head in exact}
    for jitter in range(jitters):
        rounded = jittered(checkpoint, _SEED + 1000 * jitters + jitter)
        for head, out in flat_outputs(rounded, inputs).items():
            levels[head] += (out - exact[head]).square().sum(dim=1) / jitters
    return Profile(exact, levels)


def apart(
    ours: Checkpoint, theirs: Checkpoint, inputs: Tensor, first: Profile, second: Profile
) -> Apart:
    """Compare two files on the inputs that both were run on."""
    found = _apart(first, second)
    if found.near_a_line:
        found = _apart(*(profile(checkpoint, inputs, MANY) for checkpoint in (ours, theirs)))
    return found


def _apart(first: Profile, second: Profile) -> Apart:
    found = Apart(0.0, 0.0, 0.0)
    for head, one in first.outputs.items():
        squares = (one - second.outputs[head]).square().sum(dim=1)
        size = one.square().sum(dim=1)
        levels = torch.stack([profile.levels[head] for profile in (first, second)])
        floor = 1e-26 * size + 1e-300
        over_all = squares.mean() / torch.maximum(levels.mean(dim=1).max(), floor.mean())
        each = (squares / torch.maximum(levels.amax(dim=0), floor)).nan_to_num(nan=torch.inf)
        found = Apart(
            max(found.over_all, over_all.sqrt().item()),
            max(found.on_one, each.max().sqrt().item()),
            max(found.relative, (squares.mean() / size.mean()).sqrt().item()),
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
