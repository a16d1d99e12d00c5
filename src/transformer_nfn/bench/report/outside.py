"""Predictions from outside in a report, and their place beside the models of a benchmark."""

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.kind import TIERS, Kind, Tier
from transformer_nfn.bench.models.registry import MODELS, main_models, shown_beside
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.largest import main_cells
from transformer_nfn.bench.report.scores import BySplit, Comparison, Interval, add_cell

#: Of a record: what all cells that can be compared share.
_SHARED = ("zoo", "track", "checkpoints", "runs", "zoo_runs", "split")


class Placed(NamedTuple):
    """One model of a tier on one split.

    Attributes:
        model: Its name.
        title: In tables.
        tau: With its interval.
        order: Whether the model in question is ahead of it, behind, or not told apart; None for
            that model itself.
    """

    model: str
    title: str
    tau: Interval
    order: str | None


def outside_kinds(cells: Sequence[Finished]) -> dict[str, Kind]:
    """What reports call the models that are known by their predictions alone."""
    return {
        cell.record["model"]: outside_kind(cell.record["model"], cell.record["outside"]["tier"])
        for cell in cells
        if cell.record.get("outside") is not None
    }


def outside_kind(name: str, tier: Tier) -> Kind:
    """A model that cannot be fitted here."""
    what = f"predictions from outside, nothing was fitted here; given: {TIERS[tier]}"
    return Kind(f"{name} (from outside)", what, "own", tier, False, {}, _cannot_be_made)


def _cannot_be_made(**_: Any) -> NoReturn:
    raise BenchError("of predictions from outside there is no model that could be fitted")


def standing(cell: Finished, others: Sequence[Finished]) -> list[Placed]:
    """A cell among the others of its tier on its split, the best first; the cell itself is there.

    Args:
        cell: Predictions from outside.
        others: Finished cells of a benchmark, of whatever zoos and splits.
    """
    mine = cell.record["model"]
    with shown_beside(outside_kinds([cell, *others])):
        tier = MODELS[mine].tier
        found: dict[str, BySplit] = {}
        add_cell(found.setdefault(mine, {}), cell)
        for other in main_cells(others):
            model = other.record["model"]
            rival = model != mine and model in main_models() and MODELS[model].tier == tier
            if rival and _comparable(cell, other):
                add_cell(found.setdefault(model, {}), other)
        comparison = Comparison(cell.record["zoo"], cell.record["track"], found)
        return [
            Placed(
                model,
                MODELS[model].title,
                comparison.tau(model),
                None if model == mine else comparison.order(mine, model),
            )
            for model in comparison.ranking()
        ]


def _comparable(one: Finished, other: Finished) -> bool:
    """Whether both are of the same test rows."""
    return all(one.record[name] == other.record[name] for name in _SHARED) and all(
        one.table.column(name).to_pylist() == other.table.column(name).to_pylist()
        for name in ("run_id", "checkpoint")
    )
