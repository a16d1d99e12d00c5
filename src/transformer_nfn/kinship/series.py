"""An auditor for the checkpoints of one training run: steps that repeat, steps of another run."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite
from typing import Literal

import numpy as np

from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.kinship.distances import Distance, Kinship, distance
from transformer_nfn.kinship.duplicates import linked
from transformer_nfn.kinship.fingerprinting import Fingerprint
from transformer_nfn.kinship.index import Index
from transformer_nfn.kinship.sketch.finding import are_kin

#: A step this many times the usual one leaves the series.
FAR = 5.0
#: A copy must be this much nearer than the usual step: in coarse dtypes small steps look like one.
CLOSE = 0.3
#: How many steps ahead a step may have its next of kin, so that foreign ones are stepped over.
AHEAD = 4


@dataclass(frozen=True)
class Step:
    """One checkpoint of a series.

    Attributes:
        path: Where it is.
        moved: Distance to the step before it, root mean square over the parts; None for the
            first, and where shapes differ.
        finding: What is wrong with it. "duplicate": a copy of an earlier step. "foreign": steps
            before and after it are of one run, and it is far from both, or a stranger at the end.
            "jump": far from what follows or comes before, but at an end, where this may be right.
        of: The step it duplicates.
    """

    path: str
    moved: float | None
    finding: Literal["duplicate", "foreign", "jump"] | None = None
    of: str | None = None


@dataclass(frozen=True)
class Audit:
    """What was found.

    Attributes:
        steps: All steps in order.
        usual: The median distance from one step to the next, copies left out.
    """

    steps: list[Step]
    usual: float

    @property
    def sound(self) -> bool:
        """Whether no step is a duplicate or foreign."""
        return all(step.finding in (None, "jump") for step in self.steps)


def audit_series(prints: Sequence[Fingerprint]) -> Audit:
    """Audit the checkpoints of a training run, in the order of training.

    Raises:
        CheckpointError: If there are fewer than three.
    """
    if len(prints) < 3:
        raise CheckpointError(f"a series needs 3 checkpoints or more, not {len(prints)}")
    moved = [distance(a, b) for a, b in pairwise(prints)]
    usual = _usual(moved)
    copies = _copies(prints, usual)
    rest = [number for number in range(len(prints)) if number not in copies]
    foreign = _outsiders(prints, rest, usual)
    steps = []
    for number, one in enumerate(prints):
        size = moved[number - 1].median if number else inf
        far = size if isfinite(size) else None
        if number in copies:
            steps.append(Step(one.path, far, "duplicate", prints[copies[number]].path))
        else:
            steps.append(Step(one.path, far, foreign.get(number)))
    return Audit(steps, usual)


def _usual(moved: Sequence[Distance]) -> float:
    steps = [one for one in moved if one.kinship is not Kinship.COPY]
    sizes = [one.median for one in steps if np.isfinite(one.median)]
    if sizes:
        return float(np.median(sizes))
    # Small steps in a coarse dtype are all within a copy's limit; exact copies are no steps.
    return float(np.median([one.median for one in moved if 0 < one.median < np.inf] or [0.0]))


def _copies(prints: Sequence[Fingerprint], usual: float) -> dict[int, int]:
    """For each duplicate the first step that it is a copy of."""
    found: dict[int, int] = {}
    for earlier, later, far, kind in Index.of(prints).pairs():
        if kind is Kinship.COPY and far <= CLOSE * usual:
            found.setdefault(later, earlier)
    return found


def _outsiders(
    prints: Sequence[Fingerprint], rest: Sequence[int], usual: float
) -> dict[int, Literal["foreign", "jump"]]:
    """Steps that no chain of usual steps links to most of the others."""
    pairs = [
        (i, j)
        for i in range(len(rest))
        for j in range(i + 1, min(i + 1 + AHEAD, len(rest)))
        if distance(prints[rest[i]], prints[rest[j]]).median <= FAR * usual
    ]
    main = max(linked(len(rest), pairs), key=lambda members: len(members))
    shape = prints[rest[main[0]]].shape
    found: dict[int, Literal["foreign", "jump"]] = {}
    for place, number in enumerate(rest):
        if place in main:
            continue
        inner, trailing = main[0] < place < main[-1], place > main[-1]
        last = distance(prints[rest[main[-1]]], prints[number])
        strange = (
            trailing
            and last.kinship is Kinship.STRANGER
            and not are_kin(prints[number].sketch, prints[rest[main[-1]]].sketch)
        )
        another = prints[number].shape != shape
        found[number] = "foreign" if inner or strange or another else "jump"
    return found
