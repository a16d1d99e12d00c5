"""What a benchmark will cost, before it runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_nfn.bench.examples import Divided
from transformer_nfn.bench.models.agreement import AgreementPredictor
from transformer_nfn.bench.models.neural import NeuralPredictor
from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.bench.models.regression.trees import TreePredictor
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import finished_cells, prepared
from transformer_nfn.bench.protocol.cost import measured
from transformer_nfn.bench.protocol.loading import task_and_track

#: Rows, and rounds of trees or steps of agreement probes, of a calibration: enough to be near, few
#: enough to take seconds.
_ROWS = 64
_ROUNDS = 4


def estimate_seconds(
    cells: Sequence[Cell], out: str | Path, tell: Callable[[str], object] | None = None
) -> dict[Cell, float]:
    """CPU seconds of each cell on one core.

    From finished cells of the same model on the same zoo, scaled by rows; else from a short fit:
    some batches of a neural model, the first trees of a boosted one, the first steps of agreement
    probes, a few rows of a model of one's own. Where trees stop early, it is the most that they can
    cost.

    Args:
        cells: What is to be computed.
        out: The folder of the results, for what is known already.
        tell: Is told which model is being calibrated.
    """
    known: dict[tuple[str, str], list[float]] = {}
    for finished in finished_cells(out):
        record = finished.record
        if record["fit_seconds"] is None:  # predictions from outside
            continue
        key = (record["folder"], record["model"])
        known.setdefault(key, []).append(record["fit_seconds"] / record["train_rows"])
    rates = {key: float(np.mean(values)) for key, values in known.items()}
    seconds = {}
    for cell in cells:
        plain = prepared(cell.model_copy(update={"augment": None}))  # counted, not moved
        key = (Path(cell.zoo).name, cell.model)
        if key not in rates:
            if tell is not None:
                tell(f"calibrating {cell.model} on {key[0]}")
            rates[key] = _calibrated(cell, plain) / len(plain.train)
        seconds[cell] = rates[key] * len(plain.train) * (1 if cell.augment is None else 2)
    return seconds


def _calibrated(cell: Cell, divided: Divided) -> float:
    """CPU seconds of a whole fit."""
    task, track = task_and_track(cell.zoo)
    predictor = model_named(cell.model).predictor(
        seed=0, tokens=divided.train.shape.tokens, task=task, track=track
    )
    train, validation = divided.train, divided.validation
    if isinstance(predictor, NeuralPredictor):
        few = np.arange(min(_ROWS, len(train)))
        part, held_out = train.take(few), validation.take(np.arange(min(8, len(validation))))
        epochs = predictor.fitting.epochs
        predictor.fitting = predictor.fitting.model_copy(update={"epochs": 1, "warmup": 0})
        predictor.fit(part, held_out)  # the first one also allocates
        with measured() as cost:
            predictor.fit(part, held_out)
        return cost.seconds * epochs * len(train) / len(part)
    if not isinstance(predictor, TreePredictor | AgreementPredictor):  # a user's own
        part = train.take(np.arange(min(_ROWS, len(train))))
        with measured() as cost:
            predictor.fit(part, validation)
        return cost.seconds * len(train) / len(part)
    # What comes before the first tree or step is paid once.
    what = "rounds" if isinstance(predictor, TreePredictor) else "steps"
    settings: Any = predictor.settings
    costs = []
    for count in (1, 1 + _ROUNDS):
        predictor.settings = settings.model_copy(update={what: count})
        with measured() as cost:
            predictor.fit(train, validation)
        costs.append(cost.seconds)
    return costs[0] + max(0.0, costs[1] - costs[0]) / _ROUNDS * float(getattr(settings, what))
