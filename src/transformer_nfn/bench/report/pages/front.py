"""The one page of a benchmark: a picture, a table, who is first; commands are on other pages."""

from collections.abc import Sequence

from transformer_nfn.bench.report import pictures
from transformer_nfn.bench.report.pages.page import Page
from transformer_nfn.bench.report.scores import LEAST_GROUPS, Comparison
from transformer_nfn.bench.report.tiers import column_name, overview_table, tier_sentences


def front_page(
    page: Page, comparisons: Sequence[Comparison], notes: str, left_out: str, details: Sequence[str]
) -> str:
    """The page in Markdown; its picture is drawn.

    Args:
        page: Where pictures go.
        comparisons: One for each zoo and track.
        notes: What a person has to say, with its figures filled in.
        left_out: Which cells are not shown.
        details: Links to pages of other experiments.
    """
    parts = [_TITLE]
    if comparisons:
        parts += [
            _INTRODUCTION,
            page.picture("tracks.png", "τ of all models by tier", pictures.tracks(comparisons)),
            overview_table(comparisons),
            *([_FEWER] if any(one.splits != one.every_split for one in comparisons) else []),
            *([_SMALLER] if any(map(_has_smaller, comparisons)) else []),
            "## Who is first",
            "\n".join(f"- {sentence}" for sentence in tier_sentences(comparisons)),
            _CLAIMS,
        ]
    parts += [notes] if notes else []
    parts += ["## What this does not show", f"{_LIMITS}\n{_several(comparisons)}"]
    parts += [left_out] if left_out else []
    found = [*details, "`results.json`"]
    parts.append(f"More: {', '.join(found)}. {_AGAIN}")
    return "\n\n".join(parts) + "\n"


def _has_smaller(comparison: Comparison) -> bool:
    return any(comparison.train_runs(model) is not None for model in comparison.models)


def _several(comparisons: Sequence[Comparison]) -> str:
    """Where intervals cover other training runs and seeds."""
    columns = [column_name(one) for one in comparisons if _has_several(one)]
    if not columns:
        return _ALL_ONCE
    if len(columns) == len(comparisons):
        return _SOME_SEVERAL
    return f"{_SOME_SEVERAL[:-1]}, on {'; '.join(columns)}: elsewhere all are one fit on one split."


def _has_several(comparison: Comparison) -> bool:
    """Whether some model has several fits, of other splits or seeds."""
    fits = (sum(map(len, by_split.values())) for by_split in comparison.cells.values())
    return any(count > 1 for count in fits)


_TITLE = "# Predicting accuracy from weights"

_INTRODUCTION = """How well does a model order small trained transformers by test accuracy?
The figure is Kendall's τ on unseen runs: 1 is a perfect order, 0 is chance. A tier is what models
are given; its highest is bold. "Independent" is a seed for each run, "shared" one start for all.
The noise ceiling is τ between accuracies and the same drawn again; shared errors
can lift a model above it. "Ours" are proposed here."""

_FEWER = """In brackets: the number of splits, of models that have fewer than others. Means over
different splits are not comparable: models are ranked on the splits that all of a tier have."""

_SMALLER = """"N runs": fitted only to the training and validation runs among the zoo's first N
(hollow in the picture); a model that was fitted to more is never called ahead of it."""

_CLAIMS = f""""Highest" is the mean; "first" is ahead of all others. "Ahead": the 95 % interval of
the paired difference excludes 0, from {LEAST_GROUPS} configurations on."""

_AGAIN = """`tnfn bench report` makes all pages again from `predictions`, without a fit."""

_LIMITS = """Nothing is said of other shapes, tasks or pretrained models. Much of τ tells nets that
learned from nets that did not: pages have τ among good nets and, where enough configurations were
tested twice, within them. Intervals cover other test runs of one zoo, one pair of models at a
time;"""

_SOME_SEVERAL = """other training runs and seeds only where a model has several fits."""

_ALL_ONCE = """every figure is of one fit on one split, and none covers the luck of these."""
