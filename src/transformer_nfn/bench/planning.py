"""What a benchmark will cost, before it runs."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transformer_nfn.bench.cells import Cell, finished_cells, prepared
from transformer_nfn.bench.cost import measured
from transformer_nfn.bench.neural import Fitting, NeuralPredictor
from transformer_nfn.bench.registry import model_named
from transformer_nfn.bench.trees import TreePredictor
from transformer_nfn.zoo.dataset import Zoo

#: Rows and rounds of a calibration: enough to be near, few enough to take seconds.
_ROWS = 64
_ROUNDS = 3


def estimate_seconds(cells: Sequence[Cell], out: str | Path) -> dict[Cell, float]:
    """CPU seconds of each cell on one core.

    From finished cells of the same model on nets of the same zoo, scaled by rows; else from a
    short fit: some batches of a neural model, the first trees of a boosted one.
    """
    known: dict[tuple[str, str], list[float]] = {}
    for finished in finished_cells(out):
        record = finished.record
        key = (record["folder"], record["model"])
        known.setdefault(key, []).append(record["fit_seconds"] / record["train_rows"])
    rates = {key: float(np.mean(values)) for key, values in known.items()}
    seconds = {}
    for cell in cells:
        rows = _train_rows(cell)
        key = (Path(cell.zoo).name, cell.model)
        if key not in rates:
            rates[key] = _calibrated(cell)
        seconds[cell] = rates[key] * rows
    return seconds


def _train_rows(cell: Cell) -> int:
    # Rows are counted without moving them: the augmentation doubles them.
    plain = prepared(cell.model_copy(update={"augment": None}))
    return len(plain.train) * (1 if cell.augment is None else 2)


def _calibrated(cell: Cell) -> float:
    """CPU seconds for each training row of a whole fit."""
    divided = prepared(cell.model_copy(update={"augment": None}))
    tokens = Zoo(cell.zoo).shape.tokens
    predictor = model_named(cell.model).predictor(seed=0, tokens=tokens)
    train, validation = divided.train, divided.validation
    if isinstance(predictor, NeuralPredictor):
        few = np.arange(min(_ROWS, len(train)))
        train, validation = train.take(few), validation.take(np.arange(min(8, len(validation))))
        whole = predictor.fitting.epochs
        predictor.fitting = Fitting(epochs=1, warmup=0)
        predictor.fit(train, validation)  # the first one also allocates
        share = 1 / whole
    else:
        assert isinstance(predictor, TreePredictor)
        rounds = predictor.settings.rounds
        predictor.settings = predictor.settings.model_copy(update={"rounds": _ROUNDS})
        share = _ROUNDS / rounds
    with measured() as cost:
        predictor.fit(train, validation)
    return cost.cpu_seconds / share / len(train)
