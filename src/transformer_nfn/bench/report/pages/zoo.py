"""The page of one zoo and track: all figures of its models."""

from transformer_nfn.bench.protocol.computing import STRESS_CONDITION
from transformer_nfn.bench.report import pictures, tables
from transformer_nfn.bench.report.pages.page import Page, file_name
from transformer_nfn.bench.report.scores import DRAWS, LEAST_GROUPS, Comparison
from transformer_nfn.bench.report.within import groups_within, tau_within, within_table


def zoo_page(page: Page, comparison: Comparison) -> str:
    """The page in Markdown; its pictures are drawn."""
    file = file_name(comparison.zoo, comparison.track)
    parts = [
        f"# {comparison.zoo}, {comparison.track} starts",
        f"All models on one zoo; [all zoos](index.md). {_counted(comparison)}",
        page.command(comparison, "main"),
        "## Kendall's τ",
        f"{_TAU} {_PAPER}" if tables.has_published(comparison) else _TAU,
        tables.main_table(comparison, comparison.record["task"]),
        page.picture(
            f"thresholds-{file}.png",
            "τ against the accuracy threshold",
            pictures.by_threshold(comparison),
        ),
        "## Who is ahead of whom",
        _TIERS,
        tables.differences_table(comparison),
        *_within(comparison),
        *_stress(page, comparison, file),
        "## Cost",
        _COST,
        tables.cost_table(comparison),
        "## Predicted and true accuracy",
        page.picture(
            f"scatter-{file}.png", "predicted against true accuracy", pictures.scatter(comparison)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _stress(page: Page, comparison: Comparison, file: str) -> list[str]:
    moved = [comparison.has_moved(model) for model in comparison.models]
    if not any(moved):  # where blocks are not known, there is no group
        return []
    picture = page.picture(
        f"robustness-{file}.png",
        "τ before and after a random group element",
        pictures.robustness([comparison]),
    )
    said = _STRESS if all(moved) else f"{_STRESS} {_NOT_MOVED}"
    return ["## Under the group", said, picture, tables.stress_table(comparison)]


def _counted(comparison: Comparison) -> str:
    """How much was tested, and how often."""
    tables_ = [comparison.first_cell(split).table for split in comparison.every_split]
    rows = sum(map(len, tables_))
    runs = len(set().union(*(table.column("run").to_pylist() for table in tables_)))
    fits = {
        len(comparison.seeds(model, split))
        for model in comparison.models
        for split in comparison.splits_of(model)
    }
    seeds = f"{max(fits)} seeds in a split"
    fitted = f" Each model was fitted with {seeds}." if fits != {1} else ""
    if len(fits) > 1:
        fitted = f" Some models were fitted with up to {seeds}."
    configurations = comparison.configurations()
    splits = len(comparison.every_split)
    return (
        f"{splits} split{'s' * (splits > 1)}, {rows:,} test rows of {runs:,} runs of "
        f"{configurations:,} configurations.{fitted}{_fewer(comparison)}"
    )


def _fewer(comparison: Comparison) -> str:
    """What is said where some models were fitted to fewer splits, or among fewer runs."""
    said = ""
    if comparison.splits != comparison.every_split:
        said += (
            " Models with a number of splits behind their name were fitted to that many. Means "
            "over different splits are not comparable: two models are compared in the splits that "
            "both have, and tables are in the order of those that all have; pictures do not mark "
            "them."
        )
    if any(comparison.train_runs(model) is not None for model in comparison.models):
        said += (
            ' "N runs" behind a name: fitted only to the training and validation runs among the '
            "zoo's first N; the test rows are the same for all. A model that was fitted to more "
            "is never called ahead of it. Costs are of these fits; pictures below do not mark them."
        )
    return said


def _within(comparison: Comparison) -> list[str]:
    found = within_table(comparison)
    if found is None:
        return []
    configurations, pairs = groups_within(comparison, comparison.every_split)
    counted = (
        f"{configurations:,} configurations were tested with two runs or more, {pairs:,} pairs."
    )
    differing = "in a weak L2" if comparison.track == "shared" else "in their seed or in a weak L2"
    said = _WITHIN.format(differing=differing)
    control = None
    if "hyperparameters" in comparison.models:
        control = tau_within(comparison, "hyperparameters")
    if control is not None and control.excludes_zero:
        counted += " **Here the control fails: nothing follows from this table.**"
    return ["## What weights say beyond the recipe", f"{said} {counted}", found]


_TAU = f"""Means over splits and seeds; in brackets are 95 % intervals by a bootstrap, {DRAWS:,}
draws, over configurations (near-twins, runs that differ only in seed or a weak L2, are drawn
together) and over seeds where there are several. "Ahead" means that the interval of the paired
difference excludes 0, and is not said of fewer than {LEAST_GROUPS} configurations. A threshold
leaves test rows of lower accuracy out. Bold is the highest mean, italics the second, in the splits
that all models have (on the first page italics mean "not told apart"); a column of fewer than
{LEAST_GROUPS} configurations has neither. The noise ceiling is τ between accuracies and the same
drawn again on as many test examples, for each net on its own; errors that nets share can lift a
model above it."""

_PAPER = """The paper's figures are of its own blocks and zoos: 16,000 runs, all from one seed,
splits random over checkpoints."""

_TIERS = """Models are compared within a tier: weights only, weights and queries, unlabelled inputs,
labelled inputs, no weights. The first of a tier has nothing to be compared with there."""

_WITHIN = f"""τ over pairs of runs of one configuration, at the same checkpoint. Such runs differ
only {{differing}}, so how they were trained says next to nothing of their order. It is said of
models that were tested on {LEAST_GROUPS} such configurations or more. Hyperparameters are the
control: where their interval leaves 0 out, no order can be read from this table."""

_STRESS = f"""τ on the same test rows after a random element of the group, another for each net
and block: heads and neurons permuted, M and N of condition number {STRESS_CONDITION:,.0f},
weights rounded to float32 again. The functions of the nets are the same; no model was trained
again."""

_NOT_MOVED = """Predictions from outside have no figure after that: their models cannot be asked
again."""

_COST = """CPU seconds of one thread."""
