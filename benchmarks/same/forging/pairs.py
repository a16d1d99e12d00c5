"""A case of the contest: which it is, where it starts, and the two files it makes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.same.forging.bases import DTYPES, SEEDS, STYLES, WIDE, Bases, log_uniform, pick, rng
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.measure import Apart
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import apply_element, random_net_element, symmetry_parts


@dataclass(frozen=True)
class Case:
    """What it takes to make a pair again."""

    kind: str
    family: str
    dtype: str
    seed: int

    @property
    def generator(self) -> torch.Generator:
        return rng(self.kind, self.family, self.dtype, self.seed)

    @property
    def key(self) -> str:
        return f"{self.kind} {self.family} {self.dtype} {self.seed}"

    @staticmethod
    def parse(text: str) -> "Case":
        """The inverse of `key`; a kind may have spaces."""
        kind, family, dtype, seed = text.rsplit(maxsplit=3)
        return Case(kind, family, dtype, int(seed))


@dataclass
class Pair:
    """Two files, and what is known of them.

    Attributes:
        ours: The first.
        theirs: The second.
        details: What was drawn.
        apart: How far their outputs are apart, where the maker has measured it.
        declared: Why they must not be called the same whatever their outputs.
        honest: Whether they are the same function.
        degenerate: Whether they are, but no element of the group carries one to the other: it may
            be left undecided.
        length: Tokens of the inputs to measure on.
        measured: Whether to measure; honest copies need it only now and then.
    """

    ours: Path
    theirs: Path
    details: dict[str, Any] = field(default_factory=dict)
    apart: Apart | None = None
    declared: str | None = None
    honest: bool = False
    degenerate: bool = False
    length: int = 24
    measured: bool = True


#: Kinds that are harder where there are many words.
_RARE = ("one word", "one output")

Make = Callable[[Bases, Case, Path], Pair]


def largest_condition(*dtypes: str) -> float:
    """Up to 1,000 in float32, 4 where 16 bits are involved."""
    return 1e3 if set(dtypes) == {"float32"} else 4.0


def drawn_base(case: Case, generator: torch.Generator) -> tuple[str, int]:
    """Style and seed of the network to start from; every third one is plain."""
    style = pick(generator, ("plain", *STYLES, "plain", "trained"))
    if case.kind in _RARE and torch.rand((), generator=generator) < 0.5:
        style = WIDE
    return style, int(torch.randint(SEEDS, (), generator=generator))


def moved(
    start: Path, out: Path, generator: torch.Generator, condition: float
) -> tuple[Path, dict[str, Any]]:
    """A random member of the orbit, by all parts or by some of them."""
    drawn = log_uniform(generator, 1.0, condition)
    with Checkpoint(start) as checkpoint:
        parts = list(symmetry_parts(checkpoint))
        if torch.rand((), generator=generator) < 0.6:
            keep = torch.rand(len(parts), generator=generator) < 0.4
            keep[torch.randint(len(parts), (), generator=generator)] = True
            parts = [part for part, kept in zip(parts, keep, strict=True) if kept]
        element = random_net_element(checkpoint, generator, parts=parts, condition=drawn)
        apply_element(checkpoint, element, out)
    return out, {"parts": parts, "condition": round(drawn, 2)}


def start(bases: Bases, case: Case, work: Path, generator: torch.Generator) -> tuple[Path, Draft]:
    """The first file, and a draft of a second one that is the same function.

    The draft's `details` say what was drawn, its `dtype` what it will be stored in.
    """
    style, seed = drawn_base(case, generator)
    ours = bases.stored(case.family, case.dtype, style, seed)
    exact = bases.exact(case.family, case.dtype, style, seed)
    details: dict[str, Any] = {"style": style, "base": seed}
    if torch.rand((), generator=generator) < 0.6:
        exact, more = moved(exact, work / "start", generator, largest_condition(case.dtype))
        details |= more
    draft = Draft(exact)
    draft.details, draft.dtype = details, DTYPES[case.dtype]
    if draft.checkpoint.encoder is not None:
        draft.inner = bool(torch.rand((), generator=generator) < 0.5)
        details["encoder"] = draft.inner
    return ours, draft
