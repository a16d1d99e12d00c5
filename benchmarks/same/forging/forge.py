"""Forged pairs: a kind's generator on a drawn start, its difference scaled to a size near the line.

Sizes are drawn log-uniformly around the line, so that many forgeries lie just above it, where it is
hard.
"""

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.same.forging import (  # noqa: F401  they register
    adaptive,
    hidden,
    orders,
    rare,
    settings,
    spread,
    ties,
)
from benchmarks.same.forging.bases import Bases, log_uniform
from benchmarks.same.forging.draft import Draft, jittered
from benchmarks.same.forging.kinds import KINDS, Kind
from benchmarks.same.forging.measure import (
    CALIBRATED,
    CALIBRATION,
    LENGTH,
    LINE,
    draw,
    flat_outputs,
)
from benchmarks.same.forging.pairs import Case, Pair, start
from benchmarks.same.forging.roles import UnfitError
from transformer_nfn.identity.running.inputs import NetInputs

#: What is aimed at, in units of rounding; some land below the line and are counted apart.
_LEAST, _MOST = 0.75 * LINE, 10 * LINE
_FIRST = 1e-4


def forged(bases: Bases, case: Case, work: Path) -> Pair:
    """Make a pair of a kind."""
    kind = KINDS[case.kind]
    if kind.special:
        return kind.make(bases, case, work)
    generator = case.generator
    ours, draft = start(bases, case, work, generator)
    both = kind.both
    if both is None:
        both = bool(torch.rand((), generator=generator) < 0.25)
    dither = torch.rand((), generator=generator) < 0.8
    if not kind.sized:
        kind.make(draft, generator)
        theirs = draft.store(work / "b", draft.dtype)
        return Pair(ours, theirs, draft.details, length=kind.length)
    delta = kind.make(draft, generator)
    if both:
        ours = draft.store(work / "a", draft.dtype)
        draft.values = Draft(ours).values  # what was rounded once is not rounded again
    draft.add(draft.later)
    target = log_uniform(generator, _LEAST, _MOST)
    size = calibrated(draft, delta, ours, target)
    draft.add(delta, size)
    draft.details |= {"both": both, "size": size, "aim": round(target, 2)}
    plain = both or "parts" not in draft.details
    theirs = draft.store(work / "b", draft.dtype, dither=generator if plain and dither else None)
    return Pair(ours, theirs, draft.details, length=kind.length)


def calibrated(draft: Draft, delta: dict[str, Tensor], ours: Path, target: float) -> float:
    """The size at which a difference moves the outputs by a multiple of rounding."""
    inputs = draw(draft.checkpoint, CALIBRATION, LENGTH, CALIBRATED)
    exact = flat_outputs(draft.view(), inputs)
    levels = [_level(Draft(ours), draft.dtype, inputs), _level(draft, draft.dtype, inputs)]
    size = _FIRST
    for _ in range(3):
        changed = draft.copy()
        changed.add(delta, size)
        moved = flat_outputs(changed.view(), inputs)
        strength = max(_ratio(moved[h] - exact[h], [level[h] for level in levels]) for h in exact)
        if not 0 < strength < 1e15:
            raise UnfitError("it changes nothing, or all")
        size *= min(max(target / strength, 1e-6), 1e6)
    return size


def _level(draft: Draft, dtype: torch.dtype, inputs: NetInputs) -> dict[str, Tensor]:
    """For each input the mean square of what rounding does."""
    stored = draft.view(dtype)
    exact = flat_outputs(stored, inputs)
    moved = [flat_outputs(jittered(stored, seed), inputs) for seed in range(2)]
    return {
        head: torch.stack([(m[head] - out).square().sum(dim=1) for m in moved]).mean(dim=0)
        for head, out in exact.items()
    }


def _ratio(difference: Tensor, levels: list[Tensor]) -> float:
    squares = difference.square().sum(dim=1)
    both = torch.stack(levels)
    over_all = squares.mean() / both.mean(dim=1).max().clamp_min(1e-300)
    on_one = (squares / both.amax(dim=0).clamp_min(1e-300)).max()
    return torch.maximum(over_all, on_one).sqrt().item()


def kinds() -> dict[str, Kind]:
    """All kinds by name."""
    return dict(KINDS)
