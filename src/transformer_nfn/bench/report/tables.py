"""The tables of a report, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.loading import Threshold, leaving_out
from transformer_nfn.bench.report.order import in_tier
from transformer_nfn.bench.report.published import (
    AUGMENTED_TABLE,
    CHANNELS_TABLE,
    COMPONENTS_TABLE,
    published_tau,
)
from transformer_nfn.bench.report.scores import LEAST_GROUPS, Comparison, Interval

_Figures = TypeVar("_Figures")
_TASKS = {"mnist": "MNIST", "ag_news": "AG News"}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shown(interval: Interval) -> str:
    """A mean with its interval."""
    return f"{interval.mean:.3f} [{interval.low:.2f}, {interval.high:.2f}]"


def titled(comparison: Comparison, model: str) -> str:
    """A model's title, and what it was fitted to where others were to more."""
    return f"{MODELS[model].title}{_limited(comparison, model)}"


def _limited(comparison: Comparison, model: str) -> str:
    said, count = [], len(comparison.splits_of(model))
    if count < len(comparison.every_split):
        said.append(f"{count} split{'s' * (count > 1)}")
    if (runs := comparison.train_runs(model)) is not None:
        said.append(f"{runs:,} runs")
    return f" ({', '.join(said)})" if said else ""


def main_table(comparison: Comparison, task: str) -> str:
    """τ of each model at each threshold that leaves rows out.

    Where enough configurations were tested the best is bold, the second in italics.
    """
    first, *others = comparison.thresholds
    every = np.concatenate([comparison.accuracy(split) for split in comparison.every_split])
    bounds = [first, *leaving_out(others, every)]
    enough = {one.name: comparison.configurations(one) >= LEAST_GROUPS for one in bounds}
    ranked = {bound.name: comparison.ranking(bound) for bound in bounds}
    paper = [bound.name for bound in bounds if bound.name == "none" or bound.name.startswith("≥")]
    published = has_published(comparison)
    rows = []
    for model in comparison.ranking():
        cells = [titled(comparison, model)]
        for bound in bounds:
            text = shown(comparison.tau(model, bound))
            place = ranked[bound.name].index(model)
            mark = ("**", "*")[place] if enough[bound.name] and place < 2 else ""
            cells.append(f"{mark}{text}{mark}")
        if published:
            taus = [published_tau(task, model, name) for name in paper]
            cells.append(" / ".join(figure(tau) for tau in taus if tau is not None))
        rows.append(cells)
    ceilings = [figure(comparison.ceiling(bound)) for bound in bounds]
    rows.append(["noise ceiling", *ceilings, *([""] * published)])
    tested = [f"{comparison.configurations(bound):,}" for bound in bounds]
    rows.append(["configurations", *tested, *([""] * published)])
    header = ["model", *(_column(bound.name, bound.accuracy) for bound in bounds)]
    names = ["all rows", *paper[1:]]
    return table(header + [f"paper: {' / '.join(names)}"] * published, rows)


def has_published(comparison: Comparison) -> bool:
    """Whether the paper has figures to stand beside these: of its tasks, with one start for all."""
    task = comparison.record["task"]
    known = any(published_tau(task, model, "none") for model in comparison.models)
    return comparison.track == "shared" and known


def differences_table(comparison: Comparison) -> str:
    """Each model against the first of its tier and against hyperparameters alone, paired."""
    control = "hyperparameters" if "hyperparameters" in comparison.models else None
    rows = []
    for model in comparison.ranking():
        cells = [titled(comparison, model)]
        for other in (in_tier(comparison, MODELS[model].tier)[0], control):
            if other is not None:
                same = model == other
                cells.append("" if same else _verdict(comparison, model, other))
        rows.append(cells)
    header = ["model", "against the first of its tier"]
    return table(header + ["against hyperparameters alone"] * (control is not None), rows)


def _verdict(comparison: Comparison, model: str, other: str) -> str:
    if not comparison.splits_of(model, other):
        return "no split in common"
    gap, word = comparison.difference(model, other), comparison.order(model, other)
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}], {word}"


def stress_table(comparison: Comparison) -> str:
    """τ before and after a random group element; nothing after it where it was not measured."""
    rows = []
    for model in comparison.ranking():
        if not comparison.has_moved(model):
            title, before = titled(comparison, model), comparison.tau(model)
            rows.append([title, f"{before.mean:.3f}", "", "", "", ""])
            continue
        mean, largest = comparison.change_under_group(model)
        before, after = comparison.tau(model), comparison.tau(model, column="moved")
        rows.append(
            [
                titled(comparison, model),
                f"{before.mean:.3f}",
                f"{after.mean:.3f}",
                f"{mean:+.4f}",
                f"{largest:.4f}",
                "yes" if MODELS[model].invariant else "no",
            ]
        )
    header = [
        "model",
        "τ",
        "τ, moved",
        "mean change",
        "largest change in a split",
        "invariant by construction",
    ]
    return table(header, rows)


def cost_table(comparison: Comparison) -> str:
    """What each model costs, beside what it reaches."""
    rows = []
    for model in comparison.ranking():
        parameters = comparison.mean_of(model, "parameters")
        tested = comparison.mean_of(model, "test_rows") or 1.0
        predict = comparison.mean_of(model, "predict_seconds")
        fit = comparison.mean_of(model, "fit_seconds")
        rows.append(
            [
                titled(comparison, model),
                f"{comparison.tau(model).mean:.3f}",
                "" if parameters is None else f"{parameters:,.0f}",
                "" if fit is None else f"{fit:.1f}",
                "" if predict is None else f"{1e3 * predict / tested:.2f}",
            ]
        )
    return table(["model", "τ", "parameters", "fit, CPU s", "predict, ms a net"], rows)


def tracks_table(independent: Comparison, shared: Comparison, task: str) -> str:
    """The same models where every run has its own seed and where all share one."""
    common = [model for model in independent.ranking() if model in shared.models]
    rows = []
    for model in common:
        mine, theirs = (
            f"{shown(one.tau(model))}{_limited(one, model)}" for one in (independent, shared)
        )
        rows.append([MODELS[model].title, mine, theirs, figure(published_tau(task, model, "none"))])
    mine, theirs = (f"{one.record['zoo_runs']:,} runs" for one in (independent, shared))
    starts = [f"independent starts, {mine}", f"shared start, {theirs}"]
    return table(["model", *starts, "paper (shared start, 16,000 runs)"], rows)


def variants_table(comparison: Comparison, experiment: str, task: str) -> str:
    """Variants of Transformer-NFN, with the paper's figure where there is one."""
    published = {"components": COMPONENTS_TABLE, "channels": CHANNELS_TABLE}.get(experiment, {})
    known, where = _of_task(published, task)
    whole = "no rank" if experiment == "ranks" else "all parts"
    rows = []
    for model in comparison.models:
        parameters = comparison.mean_of(model, "parameters")
        title = f"Transformer-NFN [10], {whole}" if model == "nfn" else MODELS[model].title
        rows.append(
            [
                title + _limited(comparison, model),
                shown(comparison.tau(model)),
                *[figure(known.get(model))] * bool(known),
                "" if parameters is None else f"{parameters:,.0f}",
                f"{comparison.mean_of(model, 'fit_seconds'):.0f}",
            ]
        )
    published_there = [f"in the paper{where}"] * bool(known)
    return table(["variant", "τ", *published_there, "parameters", "fit, CPU s"], rows)


def augmentation_table(by_bound: Mapping[str, Comparison], task: str) -> str:
    """τ where both training and test set hold every net twice, once moved by the group."""
    models = list(dict.fromkeys(m for comparison in by_bound.values() for m in comparison.models))
    published, where = _of_task(AUGMENTED_TABLE, task)
    rows = []
    for model in models:
        fitted = next(one for one in by_bound.values() if model in one.models)
        cells = [titled(fitted, model)]
        for comparison in by_bound.values():
            known = model in comparison.models
            cells.append(shown(comparison.tau(model)) if known else "")
        if published:
            cells.append(" / ".join(f"{tau:.3f}" for tau in published.get(model, ())))
        rows.append(cells)
    header = ["model", *by_bound]
    return table(
        header + [f"in the paper{where}: original / ±1 / ±10 / ±100"] * bool(published), rows
    )


def _of_task(
    published: Mapping[str, Mapping[str, _Figures]], task: str
) -> tuple[Mapping[str, _Figures], str]:
    """The paper's figures of a task, else of the only one that it has, and which that is."""
    if task in published or len(published) != 1:
        return published.get(task, {}), ""
    ((other, figures),) = published.items()
    return figures, f", {_TASKS[other]}"


def retrained_table(original: Comparison, by_threshold: Mapping[float, Comparison]) -> str:
    """τ of models trained once → trained again above each threshold, on the same test rows."""
    retrained = {model for again in by_threshold.values() for model in again.models}
    rows = []
    for model in original.models:
        if model not in retrained:
            continue
        cells = [MODELS[model].title]
        for accuracy, again in by_threshold.items():
            once = original.by_split(model, Threshold("", accuracy), splits=again.splits)
            shown_again = figure(again.tau(model).mean if model in again.models else None)
            cells.append(f"{np.mean(once):.3f} → {shown_again}")
        rows.append(cells)
    tested = [f"{one.mean_of(one.models[0], 'test_rows'):.0f}" for one in by_threshold.values()]
    rows.append(["test rows", *tested])
    return table(["model", *(f"from {100 * a:.1f} %" for a in by_threshold)], rows)


def _column(name: str, accuracy: float) -> str:
    if name == "none":
        return "all rows"
    return name if name.startswith("≥") else f"{name} (≥ {100 * accuracy:.1f} %)"


def figure(value: float | None) -> str:
    """A figure of a table; nothing where there is none."""
    return "" if value is None else f"{value:.3f}"
