"""Compute a cell of the benchmark: a model, fitted to one split of one zoo, and tested."""

import json
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Divided, Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.predictor import Step
from transformer_nfn.bench.models.registry import check_installed, find_model, model_named
from transformer_nfn.bench.models.saved import is_saved, save_predictor
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.cost import measured
from transformer_nfn.bench.protocol.enough import check_enough
from transformer_nfn.bench.protocol.heldout import without
from transformer_nfn.bench.protocol.loading import (
    data_digest,
    divide,
    load_examples,
    task_and_track,
    thinned,
    thresholds,
    track_of,
)
from transformer_nfn.bench.protocol.readable import check_inputs, check_known, check_readable
from transformer_nfn.bench.protocol.record import read_record
from transformer_nfn.bench.protocol.splits import check_across, check_split
from transformer_nfn.bench.questions import QUESTIONS
from transformer_nfn.group import MatrixSampler, conditioned, random_element, uniform
from transformer_nfn.jobs import DamagedError, ShardFolder, no_subnormals, one_thread
from transformer_nfn.zoo.dataset import NetShape, Zoo

#: Condition number of the random matrices in the stress column.
STRESS_CONDITION = 1e3
#: Column of a cell tested on another zoo: whether training had a run of these hyperparameters.
SEEN = "seen_hyperparameters"
#: Column of a cell that was asked something else than accuracy.
ANSWER = "answer"
#: Key of the record in the metadata of a cell's file.
RECORD = b"transformer_nfn.bench"
_SEED = 20250424  # of the group elements; nothing else depends on it


class CellJob(NamedTuple):
    """All that a worker needs."""

    cell: Cell
    name: str
    out: str
    device: str
    keep_model: bool


#: Is told of a fit as it goes.
WatchCell = Callable[[Cell, Step], None]


def cells_url(out: str | Path) -> str:
    """Where the finished cells of a benchmark are."""
    return f"{str(out).rstrip('/')}/cells"


def run_cell(job: CellJob, watch: WatchCell | None = None) -> dict[str, Any]:
    """Fit, test, test again after a random group element, and commit; the cell's record."""
    with one_thread(job.device), no_subnormals():
        return _run_cell(job, watch)


def _run_cell(job: CellJob, watch: WatchCell | None) -> dict[str, Any]:
    cell, kind = job.cell, model_named(job.cell.model)
    zoo = Zoo(cell.zoo)
    examples = load_examples(cell.zoo, cell.checkpoints, cell.runs)
    check_inputs(cell.zoo, cell.model)
    divided = prepared(cell)
    task, track = task_and_track(cell.zoo)
    predictor = kind.predictor(
        seed=cell.fit_seed, tokens=zoo.shape.tokens, task=task, track=track, device=job.device
    )
    state = Path(job.out) / "fits" / job.name
    tell = None if watch is None else partial(watch, cell)
    with measured() as fit:
        predictor.fit(divided.train, divided.validation, state=state, watch=tell)
    with measured() as predict:
        predicted = predictor.predict(divided.test)
    answers = divided.test.target
    moved = None  # where blocks are not known, there is no group
    if isinstance(divided.test.shape, NetShape):
        moved = predictor.predict(
            moved_by_group(divided.test, conditioned(STRESS_CONDITION), seed=_SEED + 1)
        )
    record: dict[str, Any] = {
        **cell.model_dump(),
        "zoo": zoo.name or Path(zoo.url).name,
        "folder": Path(cell.zoo).name,
        "track": track,
        "task": task,
        "zoo_runs": pc.count_distinct(examples.table.column("run")).as_py(),
        "data": data_digest(cell.zoo, cell.checkpoints, cell.runs),
        "thresholds": [
            [bound.name, bound.accuracy]
            for bound in thresholds(divided.test if cell.test_zoo else examples)
        ],
        "fit_seed": cell.fit_seed,
        "tau": kendall_tau(predicted, answers),
        "tau_moved": None if moved is None else kendall_tau(moved, answers),
        "tau_validation": kendall_tau(
            predictor.predict(divided.validation), divided.validation.target
        ),
        "epoch": getattr(predictor, "epoch", None),
        "parameters": predictor.parameter_count,
        "fit_seconds": fit.seconds + getattr(predictor, "earlier_seconds", 0.0),
        "predict_seconds": predict.seconds,
        "train_rows": len(divided.train),
        "validation_rows": len(divided.validation),
        "test_rows": len(divided.test),
        "settings": kind.settings_on(task, track),
        "versions": versions_here(),
    }
    kept = ["run", "run_id", "twins", "checkpoint", "epoch", "test_accuracy"]
    table = divided.test.table.select(kept)
    if cell.test_zoo is not None:
        record |= _other_zoo(Zoo(cell.test_zoo))
        table = table.append_column(SEEN, pa.array(_twins_seen(divided)))
    if cell.question != "accuracy":
        table = table.append_column(ANSWER, pa.array(answers))
    table = table.append_column("predicted", pa.array(predicted))
    if moved is not None:
        table = table.append_column("moved", pa.array(moved))
    table = table.replace_schema_metadata({RECORD: json.dumps(record).encode()})
    if job.keep_model:
        save_predictor(predictor, cell.model, divided, record, Path(job.out) / "models" / job.name)
    ShardFolder(cells_url(job.out)).commit(f"{job.name}.parquet", table, row_group_size=len(table))
    shutil.rmtree(state, ignore_errors=True)
    return record


def versions_here() -> dict[str, str]:
    """What a record says of the software."""
    return {
        "transformer-nfn": version("transformer-nfn"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def prepared(cell: Cell) -> Divided:
    """The split of a cell, filtered and augmented as it asks for."""
    examples = load_examples(cell.zoo, cell.checkpoints, cell.runs)
    divided = divide(cell.zoo, examples, cell.split)
    if cell.train_runs is not None:
        divided = thinned(divided, cell.train_runs)
    if cell.test_zoo is not None:
        check_readable(cell.model, examples.shape, Zoo(cell.test_zoo).shape)
        divided = replace(divided, test=load_examples(cell.test_zoo, cell.checkpoints, None))
    sides: list[Examples] = [divided.train, divided.validation, divided.test]
    if cell.held_out is not None:
        sides = without(sides, cell.held_out)
    if cell.question not in QUESTIONS:
        raise BenchError(f"no question {cell.question!r}; there are {', '.join(QUESTIONS)}")
    sides = [replace(side, question=cell.question) for side in sides]
    if cell.threshold is not None:
        sides = [side.take(side.accuracy >= cell.threshold) for side in sides]
    if cell.augment is not None:
        bound = uniform(cell.augment)
        sides = [
            Examples.cat([side, moved_by_group(side, bound, seed=_SEED + 2 + number)])
            for number, side in enumerate(sides)
        ]
    # `divide` has checked what it gave, not what was made of it.
    if cell.test_zoo is not None:
        check_across(*sides)
    elif (cell.threshold, cell.augment, cell.train_runs, cell.held_out) != (None,) * 4:
        check_split(*sides)
    return Divided(*sides)


def _other_zoo(zoo: Zoo) -> dict[str, Any]:
    """What a record says of the zoo it was tested on, where that is another."""
    runs = pc.count_distinct(zoo.table(columns=["run"]).column("run")).as_py()
    return {
        "test_zoo": zoo.name or Path(zoo.url).name,
        "test_folder": Path(zoo.url).name,
        "test_track": track_of(zoo),
        "test_zoo_runs": runs,
    }


def _twins_seen(divided: Divided) -> np.ndarray:
    """For each test row, whether a run with its hyperparameters was trained or validated on."""
    seen = np.concatenate([divided.train.column("twins"), divided.validation.column("twins")])
    return np.isin(divided.test.column("twins").astype(str), seen.astype(str))


def moved_by_group(examples: Examples, matrices: MatrixSampler, seed: int) -> Examples:
    """The same functions in random coordinates, another element for each network and block."""
    shape = examples.shape.owned
    element = random_element(
        shape.spec,
        networks=len(examples),
        blocks=shape.blocks,
        generator=torch.Generator().manual_seed(seed),
        matrices=matrices,
    )
    return examples.moved(element)


class Finished(NamedTuple):
    """A finished cell: its record, and a prediction for each test row."""

    record: dict[str, Any]
    table: pa.Table

    def column(self, name: str) -> np.ndarray:
        """A column of the test rows."""
        values: np.ndarray = self.table.column(name).to_numpy()
        return values


def finished_cells(out: str | Path) -> list[Finished]:
    """The finished cells of a benchmark, sorted by name.

    Cells of a model whose settings have changed since, or that is no longer there, are left out.

    Raises:
        BenchError: If a cell is damaged.
    """
    return [cell for cell in read_cells(out) if is_current(cell)]


def is_current(cell: Finished) -> bool:
    """Whether a cell is of a model that is known here, with the settings that it has now.

    Predictions from outside count unless a model here has their name.
    """
    record, kind = cell.record, find_model(cell.record["model"])
    if record.get("outside") is not None:
        return kind is None
    # As a record has them, from JSON.
    if kind is None:
        return False
    settings = kind.settings_on(record["task"], record["track"])
    return bool(json.loads(json.dumps(settings)) == record["settings"])


def read_cells(out: str | Path, names: Iterable[str] | None = None) -> list[Finished]:
    """Cells of a benchmark, sorted by name, of whatever models.

    Args:
        out: The folder of the benchmark.
        names: Of their files; all if None.

    Raises:
        BenchError: If a cell is damaged.
    """
    folder = ShardFolder(cells_url(out))
    read = []
    for name in sorted(folder.names() if names is None else names):
        try:
            table = folder.read(name)
            record = read_record((table.schema.metadata or {}).get(RECORD, b""), table)
        except (DamagedError, BenchError) as error:
            raise BenchError(
                f"cell {name} of {out} cannot be read ({error}): delete it, and run again"
            ) from None
        read.append(Finished(record, table))
    return read


def fit_and_save(
    cell: Cell,
    folder: Path,
    device: str = "cpu",
    watch: WatchCell | None = None,
    *,
    all_runs: bool = False,
) -> dict[str, Any]:
    """Fit one cell's model and save it in a folder, in place of one that is there; its record.

    Args:
        cell: What is fitted to what.
        folder: Where to.
        device: Where neural models are trained.
        watch: Is told of a fit as it goes.
        all_runs: Fit twice: to the split as it is, for the figures, and then, for what is saved,
            also to the test runs. The validation runs stay what a fit stops on.

    Raises:
        BenchError: If the folder holds something else.
    """
    if folder.exists() and not is_saved(folder):
        raise BenchError(f"{folder} exists and holds no model: choose another name")
    check_installed([cell.model])
    check_known([cell])
    check_enough([cell])
    with tempfile.TemporaryDirectory() as out:
        record = run_cell(CellJob(cell, "fit", out, device, keep_model=not all_runs), watch)
        if all_runs:
            record = _fit_to_all(cell, record, Path(out), device, watch)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(Path(out) / "models" / "fit", folder)
    return record


def _fit_to_all(
    cell: Cell, record: dict[str, Any], out: Path, device: str, watch: WatchCell | None
) -> dict[str, Any]:
    """Fit again to training and test runs together, and save that as `run_cell` does."""
    divided = prepared(cell)
    train = Examples.cat([divided.train, divided.test])
    task, track = task_and_track(cell.zoo)
    predictor = model_named(cell.model).predictor(
        seed=cell.fit_seed, tokens=train.shape.tokens, task=task, track=track, device=device
    )
    tell = None if watch is None else partial(watch, cell)
    predictor.fit(train, divided.validation, state=out / "again", watch=tell)
    record = {**record, "train_rows": len(train), "all_runs": True}
    both = Divided(train, divided.validation, divided.test)
    save_predictor(predictor, cell.model, both, record, out / "models" / "fit")
    return record
