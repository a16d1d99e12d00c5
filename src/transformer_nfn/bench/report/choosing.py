"""Which finished cells a report shows, and what it says of the others."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import main_models
from transformer_nfn.bench.protocol.computing import Finished, is_current, read_cells
from transformer_nfn.bench.report.largest import main_cells
from transformer_nfn.bench.report.predictions import read_predictions


def shown_cells(outs: Sequence[str | Path]) -> tuple[list[Finished], str]:
    """The cells that can be compared, and in some sentences which are left out.

    Args:
        outs: Folders of benchmarks, or of reports. A zoo that was built on another machine may have
            other weights, so of a zoo that several of them have one is chosen: where it has most
            runs, then where most cells are finished, then the first.

    Raises:
        BenchError: If there are none.
    """
    sources = [cells for out in outs for cells in (read_cells(out), read_predictions(out))]
    every = [cell for cells in sources for cell in cells]
    current = _of_one_source([[one for one in cells if is_current(one)] for cells in sources])
    shown = _of_whole_zoos(current)
    sentences = []
    unknown = Counter(cell.record["model"] for cell in every if not is_current(cell))
    if unknown:
        models = ", ".join(f"`{model}` ({number})" for model, number in sorted(unknown.items()))
        sentences.append(
            f"Cells of models that are not known here, or had other settings, are left out: "
            f"{models}. A model of one's own has to be registered where the report is written."
        )
    whole = len(shown)
    shown, incomplete = _with_all_splits(shown)
    for model, splits in sorted(incomplete.items()):
        sentences.append(
            f"Predictions of `{model}` from outside are left out: those for "
            f"{'split' if len(splits) == 1 else 'splits'} {', '.join(map(str, splits))} are "
            "missing (`tnfn bench score` adds them)."
        )
    if whole < len(current):
        sentences.append(
            f"{len(current) - whole} cells are left out that were computed when a zoo had "
            "fewer runs."
        )
    left_out = " ".join(sentences)
    if not shown:
        raise BenchError(
            f"{', '.join(map(str, outs))}: no finished cells yet, `tnfn bench run` computes them. "
            f"{left_out}".strip()
        )
    return shown, left_out


def _of_one_source(sources: Sequence[Sequence[Finished]]) -> list[Finished]:
    """All cells, but of each zoo only those of one source."""
    chosen: dict[tuple[Any, ...], list[Finished]] = {}
    for source in sources:
        by_zoo: dict[tuple[Any, ...], list[Finished]] = {}
        for cell in source:
            by_zoo.setdefault(_zoo_of(cell), []).append(cell)
        for zoo, cells in by_zoo.items():
            chosen[zoo] = max(chosen.get(zoo, []), cells, key=_how_much)
    return [cell for cells in chosen.values() for cell in cells]


def _how_much(cells: Sequence[Finished]) -> tuple[int, int]:
    """Runs of the largest zoo, and how many cells were computed for it."""
    runs = [cell.record["zoo_runs"] for cell in cells]
    most = max(runs, default=0)
    return most, runs.count(most)


def _with_all_splits(cells: list[Finished]) -> tuple[list[Finished], dict[str, list[int]]]:
    """Without predictions from outside that lack a split which all others have.

    Some tables show the splits that every model has: one file would cut them down to one split.

    Returns:
        The cells that are left, and the missing splits of each model that was left out.
    """
    splits: dict[tuple[Any, ...], dict[str, set[int]]] = {}
    for cell in main_cells(cells):
        if cell.record.get("outside") is None and cell.record["model"] in main_models():
            by_model = splits.setdefault(_zoo_of(cell), {})
            by_model.setdefault(cell.record["model"], set()).add(cell.record["split"])
    common = {zoo: set.intersection(*by_model.values()) for zoo, by_model in splits.items()}
    incomplete: dict[tuple[Any, ...], dict[str, set[int]]] = {}
    for cell in cells:
        if cell.record.get("outside") is not None:
            left = incomplete.setdefault(_zoo_of(cell), {})
            wanted = left.setdefault(cell.record["model"], set(common.get(_zoo_of(cell), ())))
            wanted.discard(cell.record["split"])
    missing = {
        model: sorted(left)
        for by_model in incomplete.values()
        for model, left in by_model.items()
        if left
    }
    kept = [
        cell
        for cell in cells
        if cell.record.get("outside") is None or not incomplete[_zoo_of(cell)][cell.record["model"]]
    ]
    return kept, missing


def _of_whole_zoos(cells: list[Finished]) -> list[Finished]:
    """Without those that were computed before their zoo grew: they were tested on fewer rows."""
    runs: dict[tuple[Any, ...], int] = {}
    for cell in cells:
        runs[_zoo_of(cell)] = max(runs.get(_zoo_of(cell), 0), cell.record["zoo_runs"])
    return [cell for cell in cells if cell.record["zoo_runs"] == runs[_zoo_of(cell)]]


def _zoo_of(cell: Finished) -> tuple[Any, ...]:
    return tuple(cell.record[name] for name in ("zoo", "track", "checkpoints", "runs"))
