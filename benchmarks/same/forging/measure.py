"""How far the outputs of two files are apart, in units of what rounding does to both.

A forgery is a pair whose outputs, on 256 inputs that the verdict never sees, differ by more than
four times what moving every stored number by up to half its last digit does: over all inputs. One
input alone counts from twelve times on, twice what the verdict tolerates there: the worst of 256 is
chance, one pair was at 8.3 on these inputs and at 2.9 to 6.1 on six other sets of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.same.forging.draft import jittered
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import run, without_jumps
from transformer_nfn.identity.running.inputs import NetInputs, SourceAndTarget
from transformer_nfn.space import Positions, Sound

LINE = 4.0
LINE_ON_ONE = 12.0
INPUTS = 256
LENGTH = 24
#: Roundings of each file, and how near to a line, from which part of it to which multiple, more of
#: them are needed. One is enough where a pair is far beyond both lines or far below them. Where few
#: inputs feel a change far more than others, six may be off by a half, and of 256 inputs of an
#: honest copy with few outputs one may seem to stand out: a pair that was called the same is
#: measured with care.
_STEPS = ((1, 0.3, 6.0), (6, 0.6, 1.5), (24, 0.0, 0.0))
MANY = _STEPS[-1][0]
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

    def near_a_line(self, below: float, beyond: float) -> bool:
        """Whether a better measure of rounding could make another thing of it."""
        parts = self.over_all / LINE, self.on_one / LINE_ON_ONE
        return below < max(parts) and parts[0] <= beyond


def draw(checkpoint: Checkpoint, count: int, length: int, seed: int) -> NetInputs:
    """Inputs of a checkpoint and of its encoder: token ids, images, patches, or sound."""
    generator = torch.Generator().manual_seed(_SEED + seed)
    own = _draw(checkpoint, count, length, generator)
    if checkpoint.encoder is None:
        return own
    return SourceAndTarget(_draw(checkpoint.encoder, count, length, generator), own)


def _draw(checkpoint: Checkpoint, count: int, length: int, generator: torch.Generator) -> Tensor:
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
        if isinstance(step, Sound):
            bins = checkpoint.stored.shape(f"{step.first}.weight")[1]
            frames = 2 * checkpoint.files.entry(words).shape[0]  # there are positions alone
            return torch.randn((count, bins, frames), generator=generator)
        if isinstance(step, Positions):
            rows = checkpoint.stored.shape(step.name)[0]
            length = min(length, rows - step.first_row(checkpoint.stored))
    vocabulary = checkpoint.files.entry(words).shape[0]
    return torch.randint(0, vocabulary, (count, length), generator=generator)


class Profile:
    """What one file says on the inputs, and what rounding does to it.

    Args:
        checkpoint: The file.
        inputs: On which it is run.

    Attributes:
        inputs: On which it is run.
        outputs: By head, "s o".
    """

    def __init__(self, checkpoint: Checkpoint, inputs: NetInputs) -> None:
        self.inputs, self.outputs = inputs, flat_outputs(checkpoint, inputs)
        self._sums = {head: torch.zeros(len(inputs)).double() for head in self.outputs}
        self._count = 0

    def measured(self, checkpoint: Checkpoint, jitters: int) -> "Profile":
        """The same after at least so many roundings, of the file that it was made of."""
        for jitter in range(self._count, jitters):
            rounded = jittered(checkpoint, _SEED + jitter)
            for head, out in flat_outputs(rounded, self.inputs).items():
                self._sums[head] += (out - self.outputs[head]).square().sum(dim=1)
        self._count = max(self._count, jitters)
        return self

    def level(self, head: str) -> Tensor:
        """Mean square of what rounding does to the outputs of a head, for each input "s"."""
        return self._sums[head] / self._count


def apart(ours: Checkpoint, theirs: Checkpoint, first: Profile, *, careful: bool) -> Apart:
    """Compare two files on the inputs of the first one's profile.

    Args:
        ours: The first.
        theirs: The second.
        first: Of the first; its roundings are kept for the next pair.
        careful: Whether the answer was wrong if they are apart.
    """
    second = Profile(theirs, first.inputs)
    for jitters, below, beyond in _STEPS if careful else _STEPS[:-1]:
        found = _apart(first.measured(ours, jitters), second.measured(theirs, jitters))
        if not found.near_a_line(below, beyond):
            break
    return found


def _apart(first: Profile, second: Profile) -> Apart:
    found = Apart(0.0, 0.0, 0.0)
    for head, one in first.outputs.items():
        squares = (one - second.outputs[head]).square().sum(dim=1)
        size = one.square().sum(dim=1)
        levels = torch.stack([first.level(head), second.level(head)])
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
    ours: Checkpoint, theirs: Checkpoint, inputs: NetInputs, head: str, jitters: int
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


def flat_outputs(checkpoint: Checkpoint, inputs: NetInputs) -> dict[str, Tensor]:
    """What a file says, "s o" by head."""
    # Where a router's choice is close, rounding alone turns it.
    given = run(without_jumps(checkpoint), inputs)
    return {head: out.flatten(1) for head, out in given.items()}
