"""Transfer between zoos: trained on one, tested on all rows of another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.computing import SEEN, Finished
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.report.scores import (
    BySplit,
    Comparison,
    add_cell,
    comparisons,
    named_zoo,
)
from transformer_nfn.bench.report.tables import shown, table


@dataclass(frozen=True, eq=False)
class Transfer:
    """Models trained on one zoo and tested on another.

    Attributes:
        whole: Compared on all rows of the other zoo, the same in every split.
        unseen: Only on rows whose hyperparameters no run had that was learned from, as within one
            zoo; None if a split has none.
        at_home: The same models tested on the zoo they were trained on, if they were.
        trained_there: The same models trained on the other zoo, if they were.
    """

    whole: Comparison
    unseen: Comparison | None
    at_home: Comparison | None
    trained_there: Comparison | None


def transfers(cells: Sequence[Finished], models: Sequence[str]) -> list[Transfer]:
    """One for each pair of zoos.

    Args:
        cells: Finished cells.
        models: Their names, in the order wanted.
    """
    pair = ("zoo", "track", "test_zoo", "test_track", "test_zoo_runs", "checkpoints", "runs")
    found: dict[tuple[Any, ...], dict[str, BySplit]] = {}
    for cell in cells:
        record = cell.record
        if record["model"] in models and changes_of(record).keys() == {"test_zoo"}:
            key = tuple(record[name] for name in pair)
            add_cell(found.setdefault(key, {}).setdefault(record["model"], {}), cell)
    main = {(one.zoo, one.track): one for one in comparisons(cells, models)}
    result = []
    for key, by_model in sorted(found.items(), key=lambda item: str(item[0])):
        zoo, track, test_zoo, test_track = key[:4]
        ordered = {model: by_model[model] for model in models if model in by_model}
        whole = Comparison(f"{zoo} → {test_zoo}", track, ordered).evened()
        if whole.splits:
            result.append(
                Transfer(
                    whole,
                    _unseen(whole),
                    main.get((named_zoo(zoo, key[-1]), track)),
                    main.get((test_zoo, test_track)),
                )
            )
    return result


def _unseen(whole: Comparison) -> Comparison | None:
    cells = {
        model: {
            split: {seed: _only_unseen(cell) for seed, cell in by_seed.items()}
            for split, by_seed in by_split.items()
        }
        for model, by_split in whole.cells.items()
    }
    unseen = Comparison(whole.zoo, whole.track, cells)
    fewest = min(len(unseen.first_cell(split).table) for split in unseen.splits)
    return unseen if fewest >= 2 else None


def _only_unseen(cell: Finished) -> Finished:
    return cell._replace(table=cell.table.filter(pc.invert(cell.table.column(SEEN))))


def transfer_table(transfer: Transfer) -> str:
    """τ on the other zoo, beside τ of the same models where nothing is transferred."""
    columns = {
        "all rows": transfer.whole,
        "rows of unseen hyperparameters": transfer.unseen,
        "tested at home": transfer.at_home,
        "trained there": transfer.trained_there,
    }
    shown_columns = {name: one for name, one in columns.items() if one is not None}
    rows = []
    for model in transfer.whole.ranking():
        taus = [
            shown(comparison.tau(model)) if model in comparison.models else ""
            for comparison in shown_columns.values()
        ]
        rows.append([MODELS[model].title, *taus])
    ceilings = [comparison.ceiling() for comparison in shown_columns.values()]
    rows.append(["noise ceiling", *("" if one is None else f"{one:.3f}" for one in ceilings)])
    return table(["model", *shown_columns], rows)
