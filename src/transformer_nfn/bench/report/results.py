"""results.json: every figure of a report, for machines."""

import json
from typing import Any

from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.largest import main_cells
from transformer_nfn.bench.report.scores import comparisons

#: What a record of results.json says beside its τ; costs only where no rows are left out.
_FIELDS = ("zoo", "track", "model", "split", "seed", "checkpoints", "runs", "augment", "zoo_runs")
#: Only where they have a value.
_LATER = ("train_runs", "test_zoo", "test_track", "test_zoo_runs", "held_out")
_COSTS = (
    "parameters",
    "epoch",
    "fit_seconds",
    "predict_seconds",
    "train_rows",
    "validation_rows",
    "test_rows",
)


def _results(cells: list[Finished]) -> dict[str, Any]:
    records = []
    main = [cell for cell in main_cells(cells) if cell.record["model"] in main_models()]
    in_main = set(map(id, main))
    for comparison in comparisons(main, main_models(), uneven=True):
        for model in comparison.models:
            for bound in comparison.thresholds:
                for split in comparison.splits_of(model):
                    taus = comparison.by_seed(model, split, bound)
                    moved: list[float | None] = [None] * len(taus)
                    if comparison.has_moved(model):
                        moved = [*comparison.by_seed(model, split, bound, "moved")]
                    seeds = comparison.seeds(model, split)
                    for seed, tau, tau_moved in zip(seeds, taus, moved, strict=True):
                        record = comparison.cells[model][split][seed].record
                        figures = {"threshold": bound.accuracy, "threshold_name": bound.name}
                        figures |= {"tau": tau, "tau_moved": tau_moved}
                        costs = bound.name == "none"
                        records.append(_record("main", record, figures, costs=costs))
    for cell in cells:
        record = cell.record
        name = _experiment(record)
        if name is not None and id(cell) not in in_main:
            figures = {"threshold": record["threshold"] or 0.0, "threshold_name": "trained above"}
            figures |= {"tau": record["tau"], "tau_moved": record["tau_moved"]}
            records.append(_record(name, record, figures, costs=True))
    models = {name: {"title": kind.title, "what": kind.what} for name, kind in MODELS.items()}
    return {"versions": cells[0].record["versions"], "models": models, "records": records}


def _experiment(record: dict[str, Any]) -> str | None:
    """What a cell beside the main experiment belongs to."""
    fields = {
        "across": "test_zoo",
        "thresholds": "threshold",
        "augmentation": "augment",
        "held-out": "held_out",
    }
    if record.get("question", "accuracy") != "accuracy":
        return f"question: {record['question']}"
    for experiment, field in fields.items():
        if record.get(field) is not None:
            return experiment
    if record["model"] not in main_models():
        return "variants"
    return None if record.get("train_runs") is None else "sizes"


def _record(
    experiment: str, record: dict[str, Any], figures: dict[str, Any], *, costs: bool
) -> dict[str, Any]:
    kept = {name: record[name] for name in (*_FIELDS, *(_COSTS if costs else ()))}
    kept |= {name: record[name] for name in _LATER if record.get(name) is not None}
    rounded = {k: round(v, 6) if isinstance(v, float) else v for k, v in (kept | figures).items()}
    return {"experiment": experiment, **rounded}


def results_json(cells: list[Finished]) -> str:
    """A record for each cell and threshold, each in a line of its own, which a diff can show."""
    results = _results(cells)
    head = json.dumps({k: v for k, v in results.items() if k != "records"}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(record, ensure_ascii=False) for record in results["records"])
    return f'{head[:-1]}, "records": [\n{lines}\n]}}\n'
