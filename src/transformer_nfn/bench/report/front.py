"""The one page of a benchmark: a picture, a table, who is first, and the commands."""

import shlex
from collections.abc import Sequence

from transformer_nfn.bench.report import pictures
from transformer_nfn.bench.report.page import Page, fenced, run_commands
from transformer_nfn.bench.report.scores import LEAST_GROUPS, Comparison
from transformer_nfn.bench.report.tiers import overview_table, tier_sentences


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
    parts += ["## What this does not show", _LIMITS]
    parts += [left_out] if left_out else []
    if comparisons:
        parts += ["## Commands", _commands(page, comparisons)]
    found = [*details, "`results.json`"]
    parts.append(f"More: {', '.join(found)}. {_AGAIN}")
    return "\n\n".join(parts) + "\n"


def _has_smaller(comparison: Comparison) -> bool:
    return any(comparison.train_runs(model) is not None for model in comparison.models)


def _commands(page: Page, comparisons: Sequence[Comparison]) -> str:
    """One run for all zoos that are run alike, and the report."""
    alike: dict[str, list[str]] = {}
    for comparison in comparisons:
        folder = shlex.quote(comparison.record["folder"])
        for command in run_commands("ZOOS", comparison, page.out):
            alike.setdefault(command, []).append(folder)
    lines = [
        command.replace("ZOOS", " --zoo ".join(dict.fromkeys(folders)))
        for command, folders in alike.items()
    ]
    lines.append(f"tnfn bench report {page.out} --to report")
    return fenced(lines)


_TITLE = "# Predicting accuracy from weights"

_INTRODUCTION = """How well does a model order small trained transformers by their test accuracy?
The figure is Kendall's τ on unseen runs: 1 is a perfect order, 0 is chance. A tier is what models
are given; its first is bold. "Independent" is a seed for each run, "shared" one start for all, as
in the paper. The noise ceiling is τ between accuracies measured twice. Each column's page has
intervals, costs and the command that builds its zoo."""

_FEWER = """In brackets: the number of splits, of models that have fewer than others. Means of
different splits do not compare: the first of a tier is so in the splits that all of it have."""

_SMALLER = """Models with a number of runs learned from those of the zoo's first so many that are
not tested, hollow in the picture; no model that had more is called ahead of them."""

_CLAIMS = f""""Ahead": the 95 % interval of the paired difference excludes 0, from {LEAST_GROUPS}
configurations on."""

_AGAIN = """Every prediction is in `predictions`: all figures follow from them without a fit."""

_LIMITS = """Nothing is said of other shapes and tasks, nor of pretrained models. Much of τ tells
nets that learned from nets that did not: each column's page has τ among good nets, and among runs
of one configuration. Intervals cover other test runs of one zoo, other seeds only where a model has
several, one pair of models at a time."""
