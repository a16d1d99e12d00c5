"""The one page of a benchmark: a picture, a table, who is first; commands are on other pages."""

from collections.abc import Sequence

from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.report import pictures
from transformer_nfn.bench.report.pages.page import Page
from transformer_nfn.bench.report.scores import LEAST_GROUPS, Comparison
from transformer_nfn.bench.report.tiers import listed, overview_table, tier_sentences, where


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
    parts += ["## What this does not show", f"{_LIMITS}\n{_lucky(comparisons)}"]
    parts += [left_out] if left_out else []
    found = [*details, "`results.json`"]
    parts.append(f"More: {', '.join(found)}. {_AGAIN}")
    return "\n\n".join(parts) + "\n"


def _has_smaller(comparison: Comparison) -> bool:
    return any(comparison.train_runs(model) is not None for model in comparison.models)


def _lucky(comparisons: Sequence[Comparison]) -> str:
    """Where intervals cover the luck of a fit."""
    found: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        for model, by_split in comparison.cells.items():
            if any(len(by_seed) > 1 for by_seed in by_split.values()):
                found.setdefault(MODELS[model].title, []).append(comparison)
    if not found:
        return f"{_LUCK} not covered."
    alike: dict[str, list[str]] = {}
    for title, there in found.items():
        alike.setdefault(where(there, comparisons), []).append(title)
    named = "; ".join(f"{listed(titles)}{place}" for place, titles in alike.items())
    return f"{_LUCK} covered, in part, only for models with several seeds: {named}."


_TITLE = "# Predicting accuracy from weights"

_INTRODUCTION = """How well does a model order small trained transformers by test accuracy?
The figure is Kendall's τ on unseen runs: 1 is a perfect order, 0 is chance. A tier is what models
are given; its highest is bold, in italics what is not told apart from it. "Independent" is a seed
for each run, "shared" one start for all. The noise ceiling is τ between accuracies and the same
drawn again; shared errors can lift a model above it. "Ours" are proposed here."""

_FEWER = """In brackets: the number of splits, of models that have fewer than others. Means over
different splits are not comparable: models are ranked on the splits that all of a tier have. The
picture has the same means."""

_SMALLER = """"N runs": fitted only to the training and validation runs among the zoo's first N
(hollow in the picture); a model that was fitted to more is never called ahead of it."""

_CLAIMS = f""""Highest" is the mean; "first" is ahead of all others. "Ahead": the 95 % interval of
the paired difference excludes 0, from {LEAST_GROUPS} configurations on."""

_AGAIN = """`tnfn bench report` makes all pages again from `predictions`, without a fit."""

_LIMITS = """Nothing is said of other shapes, tasks or pretrained models. Much of τ comes from
separating networks that learned something from networks that did not: pages have τ among good
networks and, where enough were tested twice, within configurations. Intervals cover other test runs
of one zoo, one pair of models at a time. Splits are averaged, not drawn: other training runs are
not covered."""

_LUCK = """The luck of a fit is"""
