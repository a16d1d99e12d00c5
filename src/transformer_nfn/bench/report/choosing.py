"""Which finished cells a report shows, and what it says of the others."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import main_models
from transformer_nfn.bench.protocol.computing import Finished, is_current, read_cells
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.report.predictions import read_predictions


def shown_cells(outs: Sequence[str | Path]) -> tuple[list[Finished], str]:
    """The cells that can be compared, and in some sentences which are left out.

    Args:
        outs: Folders of benchmarks, or of reports. Of a zoo that several of them have, those of the
            first are shown, computed cells before those of a report: a zoo that was built on
            another machine may have other weights.

    Raises:
        BenchError: If there are none.
    """
    every = _of_first_folders(outs)
    current = [cell for cell in every if is_current(cell)]
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


def _of_first_folders(outs: Sequence[str | Path]) -> list[Finished]:
    """All cells, but of each zoo only those of the first folder that has any."""
    found: list[Finished] = []
    for read, out in product((read_cells, read_predictions), outs):
        there = {_zoo_of(cell) for cell in found}
        found += [cell for cell in read(out) if _zoo_of(cell) not in there]
    return found


def _with_all_splits(cells: list[Finished]) -> tuple[list[Finished], dict[str, list[int]]]:
    """Without predictions from outside that lack a split which all others have.

    Some tables show the splits that every model has: one file would cut them down to one split.

    Returns:
        The cells that are left, and the missing splits of each model that was left out.
    """
    splits: dict[tuple[Any, ...], dict[str, set[int]]] = {}
    for cell in cells:
        of_main = cell.record["model"] in main_models() and not changes_of(cell.record)
        if cell.record.get("outside") is None and of_main:
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
