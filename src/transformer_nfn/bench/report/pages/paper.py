"""The page of the paper's other tables: tracks, components, channels, augmentation, thresholds."""

from collections.abc import Sequence
from itertools import product

from transformer_nfn.bench.models.registry import main_models
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.protocol.experiments import BOUNDS, CHANNELS, COMPONENTS, RANKS
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.report import pictures, tables
from transformer_nfn.bench.report.pages.page import Page, file_name, splits_of
from transformer_nfn.bench.report.scores import Comparison, comparisons


def paper_page(page: Page, cells: Sequence[Finished], main: Sequence[Comparison]) -> str | None:
    """The page in Markdown, its pictures drawn; None if none of these experiments was run."""
    parts = [
        *_both_tracks(main),
        *_variants(page, cells, "Components", COMPONENTS, "components"),
        *_variants(page, cells, "Channels", CHANNELS, "channels"),
        *_variants(page, cells, "Ranks", RANKS, "ranks"),
        *_augmentation(page, cells),
        *_retrained(page, cells),
    ]
    if not parts:
        return None
    return (
        "\n\n".join(["# The paper's other tables", _INTRODUCTION, *_elsewhere(main), *parts]) + "\n"
    )


def _elsewhere(main: Sequence[Comparison]) -> list[str]:
    """Where the main tables and the figure of predictions are."""
    files = [file_name(one.zoo, one.track) for one in main]
    links = ", ".join(f"[{file}]({file}.md)" for file in files)
    return [f"{_MAIN}: {links}."] if files else []


def _both_tracks(main: Sequence[Comparison]) -> list[str]:
    parts = []
    by_zoo: dict[str, dict[str, Comparison]] = {}
    for comparison in main:
        by_zoo.setdefault(comparison.zoo, {})[comparison.track] = comparison
    for zoo, by_track in by_zoo.items():
        if set(by_track) == {"independent", "shared"}:
            one, other = by_track["independent"], by_track["shared"]
            parts += [f"### {zoo}", tables.tracks_table(one, other, one.record["task"])]
    return ["## Both tracks side by side", _TRACKS, *parts] if parts else []


def _variants(
    page: Page, cells: Sequence[Finished], title: str, models: tuple[str, ...], experiment: str
) -> list[str]:
    parts = []
    for comparison in _fitted_alike(cells, models):
        if len(comparison.models) > 1:
            parts += [
                _heading(comparison, experiment),
                " ".join([splits_of(comparison), *_whole(comparison, experiment)]),
                page.command(comparison, experiment, models=_named(comparison, models)),
                tables.variants_table(comparison, experiment, comparison.record["task"]),
            ]
    return [f"## {title}", *parts] if parts else []


def _whole(comparison: Comparison, experiment: str) -> list[str]:
    """What all parts are where none is an embedding."""
    without = comparison.record["task"] == "ag_news"
    return [_NO_EMBEDDING] if experiment == "components" and without else []


def _named(comparison: Comparison, models: Sequence[str]) -> Sequence[str] | None:
    """Which models a command has to name: none where all of an experiment were fitted."""
    return None if set(comparison.models) == set(models) else comparison.models


def _rows_of(comparison: Comparison) -> tuple[str, ...]:
    """Zoo and track, and which checkpoints count unless they are the usual ones."""
    checkpoints = comparison.record["checkpoints"]
    return (comparison.zoo, comparison.track, *[checkpoints] * (checkpoints != "epochs"))


def _heading(comparison: Comparison, experiment: str) -> str:
    zoo, track, *checkpoints = _rows_of(comparison)
    return "### " + ", ".join([zoo, f"{track} starts", *checkpoints, experiment])


def _fitted_alike(cells: Sequence[Finished], models: Sequence[str]) -> list[Comparison]:
    """The fits to each zoo; to its first N runs where those are of more of the models."""
    own = [cell for cell in cells if cell.record["model"] in models]
    found: dict[tuple[str, ...], Comparison] = {}
    for size in _sizes_of(own):
        for one in comparisons(own, models, train_runs=size):
            best = found.get(_rows_of(one))
            if one.splits and (best is None or len(one.models) > len(best.models)):
                found[_rows_of(one)] = one
    return list(found.values())


def _sizes_of(cells: Sequence[Finished]) -> list[int | None]:
    """Of how many runs cells learned: all of a zoo first, then the most."""
    sizes = {cell.record.get("train_runs") for cell in cells}
    return sorted(sizes, key=lambda size: (size is not None, -(size or 0)))


def _augmentation(page: Page, cells: Sequence[Finished]) -> list[str]:
    found: dict[tuple[str, ...], dict[int | None, dict[str, Comparison]]] = {}
    models = [*main_models(), "nfn-balanced"]
    moved = [cell for cell in cells if cell.record["augment"] is not None]
    for size, bound in product(_sizes_of(moved), BOUNDS):
        for one in comparisons(moved, models, augment=bound, train_runs=size):
            if one.splits:
                by_size = found.setdefault(_rows_of(one), {})
                by_size.setdefault(size, {})[f"±{bound:g}"] = one
    parts = []
    for rows, by_size in found.items():
        # One size for all bounds: that of most fits.
        size = max(by_size, key=lambda size: sum(len(one.models) for one in by_size[size].values()))
        by_bound = by_size[size]
        last = next(reversed(by_bound.values()))
        fewer = changes_of({"train_runs": size})
        plain = [cell for cell in cells if changes_of(cell.record) == fewer]
        original = [
            one.in_splits(last.splits)
            for one in comparisons(plain, last.models, uneven=True)
            if _rows_of(one) == rows
        ]
        whole = {"original": original[0], **by_bound} if original else by_bound
        parts += [
            _heading(last, "augmented"),
            splits_of(last),
            page.command(last, "main", "augmentation", models=last.models),
            tables.augmentation_table(whole, last.record["task"]),
            page.picture(
                f"augmentation-{file_name(last.zoo, '-'.join(rows[1:]))}.png",
                "τ under augmentation",
                pictures.augmentation(whole),
            ),
        ]
    balanced = any(cell.record["model"] == "nfn-balanced" for cell in moved)
    said = f"{_AUGMENTATION} {_BALANCED}" if balanced else _AUGMENTATION
    return ["## Augmentation by the group", said, *parts] if parts else []


def _retrained(page: Page, cells: Sequence[Finished]) -> list[str]:
    bounds = sorted({c.record["threshold"] for c in cells if c.record["threshold"] is not None})
    models = main_models()
    again = {bound: comparisons(cells, models, threshold=bound) for bound in bounds}
    plain = [cell for cell in cells if not changes_of(cell.record)]
    parts = []
    for whole in comparisons(plain, models, uneven=True):
        by_threshold = {
            bound: one
            for bound, ones in again.items()
            for one in ones
            if one.splits and _rows_of(one) == _rows_of(whole)
        }
        last = next(iter(by_threshold.values()), None)
        original = None if last is None else whole.in_splits(last.splits)
        if last is not None and original is not None and original.models:
            parts += [
                _heading(last, "trained again"),
                splits_of(last),
                page.command(last, "thresholds", models=_named(last, models)),
                tables.retrained_table(original, by_threshold),
            ]
    return ["## Training again above each threshold", _RETRAINED, *parts] if parts else []


_INTRODUCTION = """What the paper compares beside its main table; [the models at a
glance](index.md). Its figures stand beside ours of the same model and task; its zoos have
almost 16,000 runs, by its code and published files all from one seed, in splits that are random
over checkpoints. In brackets are 95 %
intervals by a bootstrap over configurations, and over seeds where there are several; of a model
that was fitted once they leave out the luck of its fit, which may be larger than what tells
variants apart. "1 split":
fitted to that many only, "N runs": to those among the zoo's first N. Rows are in the order of
the splits that all models have."""

_MAIN = """Its main tables, with thresholds, and its figure of predicted against true accuracy
are on the pages of the zoos"""

_NO_EMBEDDING = """These networks are given word vectors and have no embedding: all parts are the
encoder and the classifier."""

_TRACKS = """In the shared track all runs start from one seed, as in the paper's zoo: the nets
are then points in one common system of coordinates, and a model may read single weights. In the
independent track every run has its own seed, as checkpoints in the world have. Both zoos are of
one grid, but they need not have the same configurations, nor as many runs, so a small gap means
nothing.
Hyperparameters alone, without any weight, show how much of τ is known before a weight is read."""

_AUGMENTATION = """As in the paper: training, validation and test set hold every net twice, as it
is and moved by the group, with entries of M and N uniform in [-1, 1], [-10, 10] or [-100, 100].
Such matrices are badly conditioned. Transformer-NFN and invariants read both copies alike up to
rounding. But tensors of Transformer-NFN are divided by their usual sizes, which are those of both
copies and differ with the bound, and each bound has a fit of its own, of twice the rows of the
original and so of twice the steps: that an augmented fit is better says nothing of the group."""
_BALANCED = '"Balanced" reads heads in their balanced form.'

_RETRAINED = """The paper trains every model again for each threshold. τ of the model trained
once → τ of the model that was trained on rows above the threshold only, same test rows."""
