"""Which fits of a model count in the main tables."""

from collections.abc import Sequence
from typing import Any

from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.protocol.record import changes_of

#: Of a record: what fits that stand in one table share.
_TABLE = ("zoo", "track", "checkpoints", "runs", "zoo_runs")


def main_cells(cells: Sequence[Finished]) -> list[Finished]:
    """The fits to a zoo as it is; of a model that has none, those among its first N runs.

    Of several N the one counts with most splits, then the largest: an interrupted series does not
    take the place of a finished one.

    Args:
        cells: Finished cells, of whatever experiments.
    """
    by_model: dict[tuple[Any, ...], dict[int | None, list[Finished]]] = {}
    for cell in cells:
        changes = changes_of(cell.record)
        size = changes.pop("train_runs", None)
        if not changes:
            key = (*(cell.record[name] for name in _TABLE), cell.record["model"])
            by_model.setdefault(key, {}).setdefault(size, []).append(cell)
    return [cell for by_size in by_model.values() for cell in by_size[_chosen(by_size)]]


def _chosen(by_size: dict[int | None, list[Finished]]) -> int | None:
    def most(size: int | None) -> tuple[bool, int, int]:
        splits = {cell.record["split"] for cell in by_size[size]}
        return size is None, len(splits), size or 0

    return max(by_size, key=most)
