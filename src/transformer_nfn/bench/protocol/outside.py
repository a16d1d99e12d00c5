"""Predictions that any program may have made, as a cell of the benchmark.

The file may be anybody's: nothing in it is believed before it was compared with the zoo's rows.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from jaxtyping import Float64

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.kind import Tier
from transformer_nfn.bench.models.registry import check_new_name, find_model
from transformer_nfn.bench.protocol.cell import VERSION, Cell
from transformer_nfn.bench.protocol.computing import (
    RECORD,
    Finished,
    cells_url,
    read_cells,
    versions_here,
)
from transformer_nfn.bench.protocol.enough import check_enough
from transformer_nfn.bench.protocol.loading import (
    Checkpoints,
    chosen_table,
    data_digest,
    thresholds,
    track_of,
)
from transformer_nfn.bench.protocol.splits import SPLITS, split_rows, stored_splits
from transformer_nfn.escaping import from_spreadsheet
from transformer_nfn.jobs import (
    DamagedError,
    ShardFolder,
    check_regular,
    read_csv,
    read_table,
    sound,
)
from transformer_nfn.zoo.dataset import Zoo

COLUMNS = ("run_id", "checkpoint", "predicted")
SUFFIXES = (".parquet", ".csv")
_MOST_ROWS = 10_000_000
_MOST_TEXT = 200  # characters of a name
_SHOWN = 3  # rows that an error names


class Predictions(NamedTuple):
    """A file of predictions: which rows they are of, and a number for each."""

    path: Path
    keys: list[tuple[str, str]]  # run_id and checkpoint
    predicted: Float64[np.ndarray, " n"]


def sides_table(url: str, split: int, checkpoints: Checkpoints, runs: int | None) -> pa.Table:
    """The rows of a zoo that count, with the side of a split on which each is.

    Accuracies of test rows are null, so that nobody trains on them by mistake.

    Raises:
        BenchError: If there is no such split.
    """
    folds = stored_splits(Zoo(url))
    if not 0 <= split < len(folds):
        raise BenchError(f"splits are numbered 0 to {len(SPLITS) - 1}, got {split}")
    table = chosen_table(url, checkpoints, runs)
    masks = split_rows(table, folds[split])
    side = np.select([masks.train, masks.validation], ["train", "validation"], "test")
    known = pc.if_else(pa.array(masks.test), None, table.column("test_accuracy"))
    table = table.select(["run", "run_id", "checkpoint", "epoch"])
    table = table.append_column("side", pa.array(side.tolist(), pa.string()))
    return table.append_column("test_accuracy", known)


def read_predictions(path: Path) -> Predictions:
    """Read a table of predictions, Parquet or CSV; columns beside the three are ignored.

    Raises:
        BenchError: If it is no such table, too large, or has numbers that are not finite.
    """
    if path.suffix not in SUFFIXES:
        raise BenchError(f"{path} should end in {' or '.join(SUFFIXES)}")
    try:
        read = _read_parquet if path.suffix == ".parquet" else _read_csv
        keys, predicted = read(path)
    except DamagedError as error:
        raise BenchError(f"{error}. It needs the columns {', '.join(COLUMNS)}") from None
    bad = np.flatnonzero(~np.isfinite(predicted))
    if len(bad):
        raise BenchError(
            f"{path}: {len(bad)} of {len(keys)} predictions are no finite number, such as "
            f"that of {_named([keys[place] for place in bad])}"
        )
    return Predictions(path, keys, predicted)


def _read_csv(path: Path) -> tuple[list[tuple[str, str]], np.ndarray]:
    columns = read_csv(path, COLUMNS)
    predicted = np.array([_number(text) for text in columns["predicted"]], dtype=np.float64)
    texts = [from_spreadsheet(pa.array(columns[name], pa.string())) for name in COLUMNS[:2]]
    return list(zip(*(one.to_pylist() for one in texts), strict=True)), predicted


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _read_parquet(path: Path) -> tuple[list[tuple[str, str]], np.ndarray]:
    size = check_regular(path)
    with sound(str(path)):
        with pq.ParquetFile(str(path)) as parquet:
            _check_schema(path, parquet)
        # Text as numbers of distinct values: one long value, a million times, is few bytes.
        with pq.ParquetFile(str(path), read_dictionary=list(COLUMNS[:2])) as parquet:
            table = read_table(parquet, size, COLUMNS)
    for name in COLUMNS:
        if table[name].null_count:
            raise DamagedError(f"{path}: the column {name} has {table[name].null_count} nulls")
    texts = [_texts(path, table[name]) for name in COLUMNS[:2]]
    return list(zip(*texts, strict=True)), table["predicted"].cast(pa.float64()).to_numpy()


def _check_schema(path: Path, parquet: pq.ParquetFile) -> None:
    if parquet.metadata.num_rows > _MOST_ROWS:
        raise DamagedError(f"{path} has {parquet.metadata.num_rows:,} rows")
    schema = parquet.schema_arrow
    for name in COLUMNS:
        if schema.names.count(name) != 1:
            there = "twice" if name in schema.names else "not"
            raise DamagedError(f"{path}: the column {name} is {there} there")
        _check_type(path, name, schema.field(name).type)


def _check_type(path: Path, name: str, kind: pa.DataType) -> None:
    inside = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(inside) or pa.types.is_large_string(inside)
    fits = pa.types.is_floating(kind) if name == "predicted" else text
    if name == "checkpoint":
        fits = fits or pa.types.is_integer(kind)  # an epoch
    if not fits:
        wanted = "numbers with a fraction" if name == "predicted" else "text"
        raise DamagedError(f"{path}: the column {name} is {str(kind)[:60]}, it should be {wanted}")


def _texts(path: Path, column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_integer(column.type):
        return [str(value) for value in column.to_pylist()]
    found: list[str] = []
    for chunk in column.chunks:
        values = chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk
        longest = pc.max(pc.binary_length(values)).as_py() or 0
        if longest > _MOST_TEXT:
            raise DamagedError(f"{path}: a name has {longest:,} bytes")
        found += chunk.to_pylist()
    return found


def _named(keys: Sequence[tuple[str, str]]) -> str:
    """Some rows in words; what a file says is cut short."""
    shown = "; ".join(f"run_id {run!r:.40}, checkpoint {name!r:.20}" for run, name in keys[:_SHOWN])
    return shown + (" …" if len(keys) > _SHOWN else "")


def in_order(predictions: Predictions, sides: pa.Table, split: int) -> Float64[np.ndarray, " n"]:
    """The predictions in the order of the split's test rows.

    Args:
        predictions: What was read.
        sides: All rows, see `sides_table`.
        split: For the error.

    Raises:
        BenchError: If a test row is missing, or a row is there twice or is no test row.
    """
    keys = list(zip(sides["run_id"].to_pylist(), sides["checkpoint"].to_pylist(), strict=True))
    side = dict(zip(keys, sides["side"].to_pylist(), strict=True))
    wanted = [key for key in keys if side[key] == "test"]
    there = Counter(predictions.keys)
    problems = []
    if missing := [key for key in wanted if key not in there]:
        problems.append(
            f"{len(missing)} of the {len(wanted)} test rows are missing ({_named(missing)})"
        )
    surplus = [key for key in there if side.get(key) != "test"]
    if learned := [key for key in surplus if key in side]:
        problems.append(f"{len(learned)} are rows to train or validate on ({_named(learned)})")
    if unknown := [key for key in surplus if key not in side]:
        problems.append(f"{len(unknown)} are no rows of the zoo ({_named(unknown)})")
    if twice := [key for key, count in there.items() if count > 1]:
        problems.append(f"{len(twice)} are there more than once ({_named(twice)})")
    if problems:
        raise BenchError(
            f"{predictions.path} does not have exactly the test rows of split {split}: "
            f"{'; '.join(problems)}. `tnfn bench rows` lists them, with the column side"
        )
    place = {key: number for number, key in enumerate(predictions.keys)}
    return predictions.predicted[[place[key] for key in wanted]]


def outside_cell(
    predictions: Predictions,
    url: str,
    split: int,
    *,
    name: str,
    tier: Tier,
    checkpoints: Checkpoints = "epochs",
    runs: int | None = None,
) -> Finished:
    """Score predictions on one split: a cell without a fit.

    Args:
        predictions: Of exactly the test rows.
        url: The zoo's folder.
        split: 0 to 4.
        name: What the model is called; none of the benchmark's names.
        tier: What the model was given, as its makers say: nobody can check it.
        checkpoints: Which rows of a run count.
        runs: Only the first N runs; all if None.

    Raises:
        BenchError: If rows are missing or surplus, the zoo is too small, or the name is taken.
    """
    check_new_name(name)
    if find_model(name) is not None:
        raise BenchError(f"{name!r} is a model that is registered here: choose another name")
    cell = Cell(zoo=url, model=name, split=split, checkpoints=checkpoints, runs=runs)
    sides = sides_table(url, split, checkpoints, runs)
    check_enough([cell])
    predicted = in_order(predictions, sides, split)
    every, zoo = chosen_table(url, checkpoints, runs), Zoo(url)
    count = Counter(sides["side"].to_pylist())
    tested = every.filter(pc.equal(sides["side"], "test"))
    table = tested.select(["run", "run_id", "twins", "checkpoint", "epoch", "test_accuracy"])
    table = table.append_column("predicted", pa.array(predicted))
    weightless = Examples(every, torch.empty(len(every), 0), zoo.shape)
    record: dict[str, Any] = {
        **cell.model_dump(),
        "zoo": zoo.name or Path(zoo.url).name,
        "folder": Path(url).name,
        "track": track_of(zoo),
        "task": tested["task"][0].as_py(),
        "zoo_runs": pc.count_distinct(every["run"]).as_py(),
        "data": data_digest(url, checkpoints, runs),
        "thresholds": [[bound.name, bound.accuracy] for bound in thresholds(weightless)],
        "tau": kendall_tau(predicted, tested["test_accuracy"].to_numpy()),
        "tau_moved": None,
        "epoch": None,
        "parameters": None,
        "fit_seconds": None,
        "predict_seconds": None,
        "train_rows": count["train"],
        "validation_rows": count["validation"],
        "test_rows": count["test"],
        "settings": {},
        "versions": versions_here(),
        "outside": {"tier": tier, "sha256": hashlib.sha256(predicted.tobytes()).hexdigest()},
    }
    return Finished(record, table)


def keep_outside(cell: Finished, out: str | Path) -> Path:
    """Add scored predictions to a benchmark's folder; where they are.

    Raises:
        BenchError: If others of this name and split are there already.
    """
    record = cell.record
    tiers = {
        one.record["outside"]["tier"]
        for one in read_cells(out)
        if one.record.get("outside") is not None and one.record["model"] == record["model"]
    }
    if tiers - {record["outside"]["tier"]}:
        raise BenchError(
            f"other predictions of {record['model']} were given {', '.join(sorted(tiers))}: choose "
            "the same --tier, or another --name"
        )
    content = {
        "outside": record["model"],
        "split": record["split"],
        "version": VERSION,
        "data": record["data"],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]
    file = f"{record['model']}-{record['split']}-{digest}.parquet"
    folder = ShardFolder(cells_url(out))
    path = Path(folder.url) / file
    table = cell.table.replace_schema_metadata({RECORD: json.dumps(record).encode()})
    if not folder.commit(file, table, row_group_size=len(table)):
        there = [one.record.get("outside") for one in read_cells(out, [file])]
        if there != [record["outside"]]:
            raise BenchError(
                f"{path} holds other predictions of {record['model']} for split "
                f"{record['split']}: choose another --name, or delete that file"
            )
    return path
