"""What a finished cell says of itself, read from a file that may be somebody else's."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pyarrow as pa  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.kind import MODEL_NAME, Tier
from transformer_nfn.bench.protocol.loading import Checkpoints, Track
from transformer_nfn.bench.protocol.splits import SPLITS

#: Columns of a cell that reports use, and whether they may be nothing but numbers.
_COLUMNS = {
    "run": pa.types.is_integer,
    "run_id": pa.types.is_string,
    "twins": pa.types.is_string,
    "checkpoint": pa.types.is_string,
    "epoch": pa.types.is_integer,
    "test_accuracy": pa.types.is_floating,
    "predicted": pa.types.is_floating,
}
#: There unless the networks could not be moved: predictions from outside, or no known blocks.
_MOVED = "moved"


#: Of what is counted: as a float it stays a number.
_MOST = 10**15
#: What becomes a part of a file's name and of a table.
_Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f|`<>]{1,120}$")]


class OutsideModel(BaseModel):
    """What is said of predictions that were made elsewhere."""

    model_config = ConfigDict(extra="forbid", strict=True)

    tier: Tier
    sha256: str


class _Record(BaseModel):
    """The fields that reports use; others may be there."""

    model_config = ConfigDict(extra="allow", strict=True)

    zoo: _Name
    folder: _Name
    track: Track
    task: str
    model: str = Field(pattern=MODEL_NAME)
    split: int = Field(ge=0, lt=len(SPLITS))
    seed: int = Field(ge=0)
    checkpoints: Checkpoints
    runs: int | None
    zoo_runs: int = Field(ge=1, le=_MOST)
    data: str = Field(pattern=r"^[0-9a-f]{64}$")
    augment: float | None
    threshold: float | None
    train_runs: int | None = None
    test_zoo: _Name | None = None
    test_folder: _Name | None = None
    test_track: Literal["independent", "shared"] | None = None
    test_zoo_runs: int | None = None
    question: str = "accuracy"
    held_out: str | None = None
    thresholds: list[tuple[str, FiniteFloat]] = Field(min_length=1)
    tau: FiniteFloat
    tau_moved: FiniteFloat | None
    epoch: int | None
    parameters: int | None = Field(ge=0, le=_MOST)
    fit_seconds: FiniteFloat | None
    predict_seconds: FiniteFloat | None
    train_rows: int
    validation_rows: int
    test_rows: int
    settings: dict[str, Any]
    versions: dict[str, str]
    outside: OutsideModel | None = None


def read_record(text: bytes, table: pa.Table) -> dict[str, Any]:
    """The record of a cell, checked, and its table with it.

    Args:
        text: JSON, from the metadata of the cell's file.
        table: The rows of the cell.

    Raises:
        BenchError: If it is not what a cell has.
    """
    try:
        record = _Record.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its record"
        raise BenchError(f"{place}: {first['msg']}") from None
    columns = _COLUMNS if record.tau_moved is None else {**_COLUMNS, _MOVED: pa.types.is_floating}
    for name, fits in columns.items():
        there = name in table.column_names
        if not there or not fits(table[name].type) or table[name].null_count:
            raise BenchError(f"its column {name} is missing, of another type, or has nulls")
    if record.tau_moved is None and _MOVED in table.column_names:
        raise BenchError(f"it has a column {_MOVED}, and no τ of it")
    accuracy = table["test_accuracy"].to_numpy()
    if not ((accuracy >= 0) & (accuracy <= 1)).all():  # nor not a number
        raise BenchError("its accuracies are not between 0 and 1")
    return record.model_dump(mode="json")


#: What experiments change, and how it is where they do not.
_PLAIN = {
    "augment": None,
    "threshold": None,
    "train_runs": None,
    "test_zoo": None,
    "held_out": None,
    "question": "accuracy",
}


def changes_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a cell's experiment changed; nothing where it asks for accuracy on a split as it is."""
    return {
        name: record[name] for name, plain in _PLAIN.items() if record.get(name, plain) != plain
    }
