"""The page of other questions than accuracy, and of runs of a kind that nobody learned from."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.protocol.heldout import HELD_OUT
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.questions import QUESTIONS
from transformer_nfn.bench.report.pages.page import Page, splits_of
from transformer_nfn.bench.report.scores import BySplit, Comparison, comparisons
from transformer_nfn.bench.report.tables import figure, shown, table

#: Of each zoo and track comparisons by name.
ByZoo = Mapping[tuple[str, str], dict[str, Comparison]]


def unseen_kinds(cells: Sequence[Finished]) -> ByZoo:
    """Comparisons on runs of each kind that was held out."""
    return _by_zoo({name: comparisons(cells, list(MODELS), held_out=name) for name in HELD_OUT})


def asked_page(page: Page, cells: Sequence[Finished], held_out: ByZoo) -> str | None:
    """Both; None if nothing of it was computed.

    Args:
        page: Where it is.
        cells: Finished cells.
        held_out: What `unseen_kinds` says of them.
    """
    models = list(MODELS)
    plain = [cell for cell in cells if not changes_of(cell.record)]
    main = {(one.zoo, one.track): one for one in comparisons(plain, models, uneven=True)}
    questions = _by_zoo(
        {
            name: comparisons(cells, models, question=name)
            for name in QUESTIONS
            if name != "accuracy"
        }
    )
    parts = []
    for title, said, experiment, found in (
        ("Other questions", _QUESTIONS, "questions", questions),
        ("Runs of a kind not learned from", _HELD_OUT, "held-out", held_out),
    ):
        if found:
            parts += [f"## {title}", said]
        for (zoo, track), by_name in found.items():
            last = next(reversed(by_name.values()))
            there = (zoo, track) in main
            whole = main[zoo, track].in_splits(last.splits) if there else None
            parts += [
                f"### {zoo}, {track} starts",
                splits_of(last),
                page.command(last, *["main"] * there, experiment, models=last.models),
                (_answered if experiment == "questions" else _unseen)(whole, by_name),
            ]
    return "\n\n".join(["# Beyond accuracy", _INTRODUCTION, *parts]) + "\n" if parts else None


def _by_zoo(found: Mapping[str, Sequence[Comparison]]) -> ByZoo:
    by_zoo: dict[tuple[str, str], dict[str, Comparison]] = {}
    for name, ones in found.items():
        for one in ones:
            if one.splits:
                by_zoo.setdefault((one.zoo, one.track), {})[name] = one
    return by_zoo


def _answered(whole: Comparison | None, by_question: Mapping[str, Comparison]) -> str:
    """τ of each model, a column for each question, beside that of accuracy."""
    columns = ({} if whole is None else {"accuracy": whole}) | dict(by_question)
    rows = [
        [MODELS[model].title, *(_tau(one, model) for one in columns.values())]
        for model in _models_of(by_question)
    ]
    rows.append(["*without a mistake or a tie*", *(figure(_most(c)) for c in columns.values())])
    return table(["model", *columns], rows)


def _most(comparison: Comparison) -> float:
    """τ of predictions in the right order of which no two are equal."""
    answers = [comparison.accuracy(split) for split in comparison.splits]
    return float(
        np.mean([kendall_tau(one.argsort(kind="stable").argsort(), one) for one in answers])
    )


def _unseen(whole: Comparison | None, by_kind: Mapping[str, Comparison]) -> str:
    """τ on rows of each kind: of the ordinary fit → of the one that has not learned from it."""
    seen = {kind: _on_rows_of(one, whole) for kind, one in by_kind.items()}
    rows = []
    for model in _models_of(by_kind):
        cells = [] if whole is None else [_tau(whole, model)]
        for kind, one in by_kind.items():
            ordinary, before = seen[kind], ""
            if ordinary is not None and model in ordinary.models:
                before = f"{ordinary.tau(model).mean:.3f} → "
            cells.append(before + _tau(one, model))
        rows.append([MODELS[model].title, *cells])
    tested = {kind: sum(len(one.accuracy(s)) for s in one.splits) for kind, one in by_kind.items()}
    header = ["model", *["all rows"] * (whole is not None)]
    return table([*header, *(f"{kind}, {rows:,} rows" for kind, rows in tested.items())], rows)


def _on_rows_of(tested: Comparison, whole: Comparison | None) -> Comparison | None:
    """What was fitted to all kinds, on the rows of one; None if there is no such fit."""
    if whole is None:
        return None
    cells: dict[str, BySplit] = {}
    for model in (model for model in whole.models if model in tested.models):
        for split in tested.splits:
            rows = tested.first_cell(split).table
            kept = set(zip(rows["run_id"].to_pylist(), rows["checkpoint"].to_pylist(), strict=True))
            cells.setdefault(model, {})[split] = {
                seed: Finished(cell.record, _only(cell.table, kept))
                for seed, cell in whole.cells[model][split].items()
            }
    return Comparison(whole.zoo, whole.track, cells) if cells else None


def _only(rows: pa.Table, kept: set[tuple[str, str]]) -> pa.Table:
    keys = zip(rows["run_id"].to_pylist(), rows["checkpoint"].to_pylist(), strict=True)
    return rows.filter(pa.array([key in kept for key in keys]))


def _models_of(by_name: Mapping[str, Comparison]) -> list[str]:
    return list(dict.fromkeys(model for one in by_name.values() for model in one.models))


def _tau(comparison: Comparison, model: str) -> str:
    return shown(comparison.tau(model)) if model in comparison.models else ""


_INTRODUCTION = """What else weights say, by some of the models of [accuracy](index.md), each fitted
anew, on the splits named below; τ with 95 % intervals over configurations and seeds."""

_QUESTIONS = (
    "τ between prediction and answer: "
    + "; ".join(
        f"`{name}`, {question.what}" for name, question in QUESTIONS.items() if name != "accuracy"
    )
    + """. Many pairs of runs have one optimizer, or one epoch: predictions in the right order of
which no two are equal reach what the last row says. Hyperparameters are given the optimizer and the
epoch."""
)

_HELD_OUT = """Runs of one optimizer, or with a learning rate at the upper quartile of the
optimizer's or above, are left out of training and validation, and only such runs are tested:
hyperparameters cannot be interpolated there. On the same rows: τ of the ordinary fit, which learned
from all kinds → τ of the one that has not seen this kind, with its interval."""
