"""The columns of a zoo's shards. docs/reference/formats.md specifies them."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.runs import Hyperparameters
from transformer_nfn.zoo.tensors import AnyShape, TensorShape

FORMAT = 2
ROW_GROUP = 256
METADATA_KEY = b"transformer_nfn"

#: What a row says of its run and its checkpoint, beside the weights.
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "run": (
        pa.int32(),
        "place of the run in the recipe's fixed random order, or in the imported list, from 0",
    ),
    "run_id": (pa.string(), "hash of all that determines the run"),
    "checkpoint": (
        pa.string(),
        'epoch as a string, or "best": highest validation accuracy, in the published zoo highest '
        "test accuracy",
    ),
    "epoch": (pa.int32(), "epochs trained; 0 in a best row if there is none, or it is not known"),
    "status": (
        pa.string(),
        '"ok", "diverged", or for imported files "unreadable": then weights and figures are null',
    ),
    "task": (pa.string(), "what the net was trained on"),
    "block": (
        pa.string(),
        'the block\'s declaration, "paper" or "residual"; "tensors" where it is not known',
    ),
    "optimizer": (
        pa.string(),
        'sgd, sgdm, adam or rmsprop; "unknown" where nobody knows how a net was trained: then the '
        "five numbers below are NaN and the seed is -1",
    ),
    "lr": (pa.float64(), "highest learning rate"),
    "l2": (pa.float64(), "weight decay of the optimizer"),
    "dropout": (pa.float64(), "rate after attention and after the MLP"),
    "init_std": (pa.float64(), "standard deviation of the initial weights"),
    "train_fraction": (pa.float64(), "share of the training examples that the run saw"),
    "seed": (pa.int64(), "seed of start, data order, crops and dropout"),
    "twins": (pa.string(), "equal for near-twins: runs that differ only in an L2 up to 1e-6"),
    "fold": (pa.int8(), "0 to 9, equal for near-twins; splits are made of whole folds"),
    "train_loss": (pa.float64(), "mean over the epoch, with dropout"),
    "train_accuracy": (pa.float64(), "mean over the epoch, with dropout"),
    "validation_accuracy": (pa.float64(), "at the end of the epoch"),
    "test_accuracy": (pa.float64(), "at the end of the epoch"),
    "test_loss": (pa.float64(), "mean cross entropy on the test examples"),
    "calibration_error": (
        pa.float64(),
        "on the test examples: how far confidence is from accuracy, in the mean over 15 equal bins",
    ),
    "noisy_accuracy": (
        pa.float64(),
        "on the first 2,000 test examples, with normal noise of half their standard deviation",
    ),
    "digest": (pa.string(), "SHA-256 of the row: all other columns as JSON, then the weights"),
}
MAY_BE_NULL = {
    "train_loss",
    "train_accuracy",
    "validation_accuracy",
    "test_accuracy",
    "test_loss",
    "calibration_error",
    "noisy_accuracy",
}


def zoo_schema(shape: AnyShape) -> pa.Schema:
    """The schema of a zoo of these nets; its metadata say where each tensor is in a row."""
    fields = [
        pa.field(name, kind, nullable=name in MAY_BE_NULL) for name, (kind, _) in COLUMNS.items()
    ]
    item = pa.field("element", pa.float32(), nullable=False)  # Parquet's own name
    fields.append(pa.field("weights", pa.list_(item, shape.size), nullable=True))
    layout = [
        {"name": name, "offset": offset, "shape": list(dims)}
        for name, (offset, dims) in shape.stored.items()
    ]
    described = {"format": FORMAT, "net": shape.model_dump(), "layout": layout}
    return pa.schema(fields, {METADATA_KEY: json.dumps(described).encode()})


def read_shape(schema: pa.Schema) -> AnyShape:
    """The nets of a shard.

    Raises:
        StoreError: If the file is not a zoo's, or of another format.
    """
    metadata = schema.metadata or {}
    if METADATA_KEY not in metadata:
        raise StoreError("not a shard of a zoo: its schema has no transformer_nfn metadata")
    try:
        described = json.loads(metadata[METADATA_KEY])
        found = described["format"]
        if found == FORMAT:
            plain = "tensors" in described["net"]
            shape: AnyShape = (TensorShape if plain else NetShape).model_validate(described["net"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"its description is damaged: {str(error)[:200]}") from None
    if found != FORMAT:
        raise StoreError(f"zoo format {found!r:.60}, this version reads {FORMAT}")
    if schema.names.count("weights") != 1 or not _are_weights(schema.field("weights").type, shape):
        raise StoreError(f"the weights column is not {shape.size} numbers wide")
    return shape


def check_columns(table: pa.Table, shape: AnyShape, columns: Sequence[str] | None = None) -> None:
    """Check that a shard has the columns of a zoo, as others will use them.

    Args:
        table: What was read.
        shape: The nets of the zoo.
        columns: Which must be there; all if None.

    Raises:
        StoreError: If one is missing, of another type, or null where it must not be.
    """
    for name in columns or [*COLUMNS, "weights"]:
        if name not in table.column_names:
            raise StoreError(f"it has no column {name!r}")
        column = table[name]
        if name == "weights":
            fits = _are_weights(column.type, shape)
        else:
            fits = column.type == COLUMNS[name][0]
            fits = fits and (name in MAY_BE_NULL or not column.null_count)
        if not fits:
            raise StoreError(f"column {name!r} is {str(column.type)[:60]}, or has nulls")


def _are_weights(kind: pa.DataType, shape: AnyShape) -> bool:
    is_list = pa.types.is_fixed_size_list(kind)
    return is_list and (kind.value_type, kind.list_size) == (pa.float32(), shape.size)


def run_columns(
    h: Hyperparameters, *, number: int, run_id: str, seed: int, task: str, block: str
) -> dict[str, Any]:
    """The columns that all rows of a run share."""
    return {
        "run": number,
        "run_id": run_id,
        "task": task,
        "block": block,
        **h.model_dump(),
        "seed": seed,
        "twins": h.twins,
        "fold": h.fold,
    }


def row_digest(row: dict[str, Any], weights: np.ndarray | None) -> str:
    """The checksum that stands in a row."""
    described = {name: row[name] for name in COLUMNS if name != "digest"}
    hashed = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    if weights is not None:
        hashed.update(np.ascontiguousarray(weights, dtype="<f4").tobytes())
    return hashed.hexdigest()


def zoo_table(
    shape: AnyShape, rows: Sequence[dict[str, Any]], weights: Iterable[np.ndarray | None]
) -> pa.Table:
    """Rows with their weights as a table, digests included."""
    matrix = np.zeros((len(rows), shape.size), dtype=np.float32)
    missing = np.zeros(len(rows), dtype=bool)
    digests = []
    for number, (row, one) in enumerate(zip(rows, weights, strict=True)):
        if one is None:
            missing[number] = True
        else:
            matrix[number] = one
        digests.append(row_digest(row, one))
    schema = zoo_schema(shape)
    columns = [
        pa.array(
            digests if name == "digest" else [row[name] for row in rows], schema.field(name).type
        )
        for name in COLUMNS
    ]
    column = pa.FixedSizeListArray.from_arrays(
        pa.array(matrix.reshape(-1)), type=schema.field("weights").type, mask=pa.array(missing)
    )
    return pa.Table.from_arrays([*columns, column], schema=schema)


def weight_matrix(column: pa.ChunkedArray | pa.Array, size: int) -> np.ndarray:
    """The weights column as "rows weights"; rows that are null become NaN."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [np.empty((0, size), dtype=np.float32)]
    for chunk in chunks:
        # .values ignores the chunk's offset, .flatten leaves null rows out: neither alone is right.
        values = chunk.values.to_numpy(zero_copy_only=False).reshape(-1, size)
        part = values[chunk.offset : chunk.offset + len(chunk)]
        if chunk.null_count:
            part = part.copy()
            part[chunk.is_null().to_numpy(zero_copy_only=False)] = np.nan
        parts.append(part)
    return np.concatenate(parts)


def chosen_rows(table: pa.Table, where: pc.Expression | None) -> tuple[pa.Table, np.ndarray]:
    """The rows of a table that a filter takes, in the zoo's order, and their places before.

    For tables without weights, which are then moved by these places: sorting them takes seconds.
    """
    table = table.append_column("place", pa.array(np.arange(len(table))))
    if where is not None:
        table = table.filter(where)
    table = table.sort_by([(name, "ascending") for name in ("run", "epoch", "checkpoint")])
    return table.drop_columns(["place"]), table.column("place").to_numpy()
