"""Read the CSV file of the published Small Transformer Zoo."""

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from pydantic import ValidationError

from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.runs import Hyperparameters, content_hash

SOURCE = "small-transformer-zoo"
MAX_CSV = 256_000_000

PublishedTask = Literal["mnist", "ag_news"]
ACCURACY: dict[PublishedTask, str] = {"mnist": "test_top1_accuracy", "ag_news": "test_accuracy"}

#: Columns of the CSV and the fields of `Hyperparameters`.
_FIELDS = {
    "optimizer": "optimizer",
    "lr": "lr",
    "l2_regularize": "l2",
    "dropout": "dropout",
    "w_init_std": "init_std",
    "train_fraction": "train_fraction",
}
_OPTIMIZERS = {"sgd_momentum": "sgdm", "momentum": "sgdm"}
#: How the published files are named: run, epoch, accuracy.
FILE = re.compile(r"([0-9A-Za-z]+)_(\d+|best\d*)(?:_\d+)?\.pt")
_BEST = re.compile(r"best\d*", re.IGNORECASE)
_INT64 = 2**63


class Checkpoint(NamedTuple):
    """One line of the CSV."""

    line: int
    run: int
    run_id: str
    name: str  # the epoch, or "best"
    epoch: int
    file: str
    hyperparameters: Hyperparameters
    seed: int
    accuracy: float | None


class Metadata(NamedTuple):
    """The CSV: its checksum and its lines."""

    sha256: str
    checkpoints: tuple[Checkpoint, ...]


def read_metadata(source: Path, task: PublishedTask) -> Metadata:
    """Read ``metadata/<task>.csv``.

    A run is what shares hyperparameters, seed and, where a file is named as the published ones are,
    the run in its name: the authors' grids overlap, so one configuration may be trained twice.

    Raises:
        StoreError: If the file is missing, too large or no such table, or two lines are of the same
            run and checkpoint.
    """
    path = source / "metadata" / f"{task}.csv"
    content = _content(path)
    runs: dict[tuple[Hyperparameters, int], dict[str, tuple[int, str]]] = {}
    parsed: dict[tuple[str, ...], Hyperparameters] = {}
    seen: dict[tuple[int, str], int] = {}
    checkpoints, numbered = [], 0
    for line, row in _lines(path, content, task):
        where = f"{path}, line {line}"
        texts = tuple(row[column] for column in _FIELDS)
        if texts not in parsed:
            parsed[texts] = _hyperparameters(row, where)
        h, seed = parsed[texts], _integer(row, "seed", where, -_INT64, _INT64)
        named = FILE.fullmatch(PurePosixPath(row["ckpt_file"]).name)
        repeats = runs.setdefault((h, seed), {})
        original = named[1] if named else ""
        if original not in repeats:
            described = [SOURCE, task, h.model_dump(), seed, *([original] if repeats else [])]
            repeats[original] = (numbered, content_hash(described)[:32])
            numbered += 1
        run, run_id = repeats[original]
        name, epoch = _checkpoint(row, where)
        first = seen.setdefault((run, name), line)
        if first != line:
            raise StoreError(
                f"{path}: lines {first} and {line} are both checkpoint {name!r} of one run"
            )
        accuracy = _accuracy(row, ACCURACY[task], where)
        checkpoints.append(
            Checkpoint(line, run, run_id, name, epoch, row["ckpt_file"], h, seed, accuracy)
        )
    return Metadata(hashlib.sha256(content).hexdigest(), _fractions(checkpoints, path, task))


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise StoreError(f"there is no file {path}: the source is the folder that holds metadata/")
    with path.open("rb") as file:
        content = file.read(MAX_CSV + 1)
    if len(content) > MAX_CSV:
        raise StoreError(f"{path} has more than {MAX_CSV} bytes: this is not the published table")
    return content


def _lines(path: Path, content: bytes, task: PublishedTask) -> Iterator[tuple[int, dict[str, str]]]:
    """The columns that are needed, with the number of each line in the file."""
    needed = ["ckpt_epoch", "ckpt_file", "seed", *_FIELDS, ACCURACY[task]]
    try:
        table = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        header = next(table, [])
        missing = [column for column in needed if column not in header]
        if missing:
            raise StoreError(f"{path} has no columns {', '.join(missing)}")
        places = {column: header.index(column) for column in needed}
        for cells in table:
            if not cells:
                continue  # an empty line
            if len(cells) != len(header):
                raise StoreError(
                    f"{path}, line {table.line_num}: {len(cells)} cells, the header has "
                    f"{len(header)}"
                )
            yield table.line_num, {name: cells[place].strip() for name, place in places.items()}
    except (UnicodeDecodeError, csv.Error) as error:
        raise StoreError(f"{path} is no CSV file in UTF-8: {error}") from error


def _hyperparameters(row: dict[str, str], where: str) -> Hyperparameters:
    fields: dict[str, object] = {
        field: _number(row, column, where)
        for column, field in _FIELDS.items()
        if column != "optimizer"
    }
    optimizer = row["optimizer"].lower()
    fields["optimizer"] = _OPTIMIZERS.get(optimizer, optimizer)
    try:
        return Hyperparameters.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        column = next(c for c, field in _FIELDS.items() if field == problem["loc"][0])
        raise StoreError(f"{where}, {column}: {problem['msg']}, got {row[column]!r}") from error


def _number(row: dict[str, str], column: str, where: str) -> float:
    try:
        number = float(row[column])
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise StoreError(f"{where}, {column}: expected a finite number, got {row[column]!r}")
    return number


def _integer(row: dict[str, str], column: str, where: str, low: int, stop: int) -> int:
    """An integer, also as pandas spells it beside empty cells: 75.0."""
    text = re.sub(r"\.0+$", "", row[column])
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not low <= int(text) < stop:
        raise StoreError(
            f"{where}, {column}: expected an integer from {low} to {stop - 1}, got {row[column]!r}"
        )
    return int(text)


def _checkpoint(row: dict[str, str], where: str) -> tuple[str, int]:
    """Name and epoch; which epoch was the best one is not published, it counts as 0."""
    if _BEST.fullmatch(row["ckpt_epoch"]):
        return "best", 0
    epoch = _integer(row, "ckpt_epoch", where, 0, 2**31)
    file = PurePosixPath(row["ckpt_file"]).name
    named = FILE.fullmatch(file)  # else the run's random name may have "best" in it
    return ("best" if "best" in (named[2] if named else file.lower()) else str(epoch)), epoch


def _accuracy(row: dict[str, str], column: str, where: str) -> float | None:
    if row[column].lower() in ("", "nan"):
        return None
    return _number(row, column, where)


def _fractions(
    checkpoints: list[Checkpoint], path: Path, task: PublishedTask
) -> tuple[Checkpoint, ...]:
    """Accuracies between 0 and 1; one above 1 shows that the whole column is in percent."""
    known = [c.accuracy for c in checkpoints if c.accuracy is not None]
    if known and not (min(known) >= 0 and max(known) <= 100):
        raise StoreError(
            f"{path}, {ACCURACY[task]}: expected fractions or percents, got values from "
            f"{min(known)} to {max(known)}"
        )
    if not known or max(known) <= 1:
        return tuple(checkpoints)
    return tuple(
        c if c.accuracy is None else c._replace(accuracy=c.accuracy / 100) for c in checkpoints
    )
