"""Which finished cells a report shows, and what it says of the others."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import main_models
from transformer_nfn.bench.protocol.computing import Finished, is_current, read_cells
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.report.largest import main_cells
from transformer_nfn.bench.report.predictions import read_predictions


def shown_cells(outs: Sequence[str | Path]) -> tuple[list[Finished], str]:
    """The cells that can be compared, and in some sentences which are left out.

    Args:
        outs: Folders of benchmarks, or of reports. Cells of one build of a zoo add up, wherever
            they were computed. A zoo that was built on another machine may have other weights, so
            of several builds one is chosen: with most runs, then with most finished cells, then
            the first.

    Raises:
        BenchError: If there are none.
    """
    every = [cell for out in outs for cell in (*read_cells(out), *read_predictions(out))]
    shown, left = _of_one_build([cell for cell in every if is_current(cell)])
    sentences = []
    unknown = Counter(cell.record["model"] for cell in every if not is_current(cell))
    if unknown:
        models = ", ".join(f"`{model}` ({number})" for model, number in sorted(unknown.items()))
        sentences.append(
            f"Cells of models that are not known here, or had other settings, are left out: "
            f"{models}. A model of one's own has to be registered where the report is written."
        )
    shown, incomplete = _with_all_splits(shown)
    for model, splits in sorted(incomplete.items()):
        sentences.append(
            f"Predictions of `{model}` from outside are left out: those for "
            f"{'split' if len(splits) == 1 else 'splits'} {', '.join(map(str, splits))} are "
            "missing (`tnfn bench score` adds them)."
        )
    sentences += [f"{count} cells are left out that {why}." for why, count in left.items()]
    left_out = " ".join(sentences)
    if not shown:
        raise BenchError(
            f"{', '.join(map(str, outs))}: no finished cells yet, `tnfn bench run` computes them. "
            f"{left_out}".strip()
        )
    return shown, left_out


class _Build(NamedTuple):
    """Where a cell's networks are from.

    Attributes:
        runs: Of the zoo when the cell was computed.
        data: The digest of the rows.
    """

    runs: int
    data: str


def _of_one_build(cells: Sequence[Finished]) -> tuple[list[Finished], Counter[str]]:
    """Of each zoo the cells of its largest build, each once, and why how many others are not."""
    builds: dict[tuple[Any, ...], dict[_Build, dict[str, Finished]]] = {}
    for cell in cells:
        build = _Build(cell.record["zoo_runs"], cell.record["data"])
        of_build = builds.setdefault(_zoo_of(cell), {}).setdefault(build, {})
        of_build.setdefault(_fit_of(cell), cell)
    shown: list[Finished] = []
    left: Counter[str] = Counter()
    for of_zoo in builds.values():
        chosen = max(of_zoo, key=lambda build: (build.runs, len(of_zoo[build])))
        shown += of_zoo[chosen].values()
        for build, of_build in of_zoo.items():
            if build.runs < chosen.runs:
                left["were computed when a zoo had fewer runs"] += len(of_build)
            elif build != chosen:
                left["are of another build of their zoo"] += len(of_build)
    return shown, left


def _fit_of(cell: Finished) -> str:
    """What tells cells of one build apart: what was fitted, on which split, how it was tested."""
    names = ("model", "split", "seed", "test_track", "test_zoo_runs")
    return json.dumps([[cell.record.get(name) for name in names], changes_of(cell.record)])


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


def _zoo_of(cell: Finished) -> tuple[Any, ...]:
    return tuple(cell.record[name] for name in ("zoo", "track", "checkpoints", "runs"))
