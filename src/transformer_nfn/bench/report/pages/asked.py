"""The page of other questions than accuracy, and of runs of a kind that nobody learned from."""

from collections.abc import Mapping, Sequence

from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.protocol.heldout import HELD_OUT
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.questions import QUESTIONS
from transformer_nfn.bench.report.pages.page import Page, splits_of
from transformer_nfn.bench.report.scores import Comparison, comparisons
from transformer_nfn.bench.report.tables import shown, table

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
            columns = {"accuracy": main[zoo, track].in_splits(last.splits)} if there else {}
            parts += [
                f"### {zoo}, {track} starts",
                splits_of(last),
                page.command(last, *["main"] * there, experiment, models=last.models),
                _columns({**columns, **by_name}),
            ]
    return "\n\n".join(["# Beyond accuracy", _INTRODUCTION, *parts]) + "\n" if parts else None


def _by_zoo(found: Mapping[str, Sequence[Comparison]]) -> ByZoo:
    by_zoo: dict[tuple[str, str], dict[str, Comparison]] = {}
    for name, ones in found.items():
        for one in ones:
            if one.splits:
                by_zoo.setdefault((one.zoo, one.track), {})[name] = one
    return by_zoo


def _columns(by_name: Mapping[str, Comparison]) -> str:
    """τ of each model, a column for each comparison; the first, accuracy, adds no model."""
    asked = list(by_name.values())[1:] if "accuracy" in by_name else list(by_name.values())
    seen = dict.fromkeys(model for one in asked for model in one.models)
    rows = []
    for model in seen:
        cells = [shown(c.tau(model)) if model in c.models else "" for c in by_name.values()]
        rows.append([MODELS[model].title, *cells])
    return table(["model", *by_name], rows)


_INTRODUCTION = """What else weights say, by the same splits and models as
[accuracy](index.md), each fitted anew; τ with 95 % intervals over configurations and seeds."""

_QUESTIONS = (
    "τ between prediction and answer: "
    + "; ".join(
        f"`{name}`, {question.what}" for name, question in QUESTIONS.items() if name != "accuracy"
    )
    + """. Of two optimizers most pairs are ties, which τ-b leaves out of its numerator: 1 cannot be
reached there. Models that read no weights know the optimizer and the epoch."""
)

_HELD_OUT = """Runs of one optimizer, or with a learning rate at the upper quartile of the
optimizer's or above, are left out of training and validation, and only such runs are tested:
hyperparameters cannot be interpolated there. The column accuracy has all kinds on both sides."""
