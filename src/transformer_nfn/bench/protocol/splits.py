"""Five fixed ways to divide a zoo into training, validation and test runs."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from jaxtyping import Bool, Float

from transformer_nfn.bench.errors import BenchError, LeakError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.jobs import JobError
from transformer_nfn.zoo.dataset import Zoo

FORMAT = 1
FILE = "splits.json"


class Folds(NamedTuple):
    """Which of a zoo's ten folds test and which validate; training has the others."""

    test: tuple[int, ...]
    validation: tuple[int, ...]


#: Every fold, and so every run, is tested in exactly one split, and validates in at most one.
SPLITS = tuple(Folds((2 * s, 2 * s + 1), ((2 * s + 2) % 10,)) for s in range(5))


class Split(NamedTuple):
    """Masks over rows: each row is in exactly one."""

    train: Bool[np.ndarray, " n"]
    validation: Bool[np.ndarray, " n"]
    test: Bool[np.ndarray, " n"]


def stored_splits(zoo: Zoo) -> tuple[Folds, ...]:
    """The splits that lie beside a zoo's rows, put there on first use.

    A run's fold follows from its hyperparameters alone, so the splits stay when a zoo grows.

    Raises:
        BenchError: If the file says something else than this version would.
    """
    described = {"format": FORMAT, "column": "fold", "splits": [s._asdict() for s in SPLITS]}
    try:
        if zoo.root.write_once(FILE, json.dumps(described, indent=1).encode()):
            return SPLITS
    except (JobError, OSError):  # a zoo that can only be read: its folds are there all the same
        if FILE not in zoo.root.sidecars():
            return SPLITS
    try:
        there = zoo.root.read_json(FILE)
        read = tuple(Folds(tuple(s["test"]), tuple(s["validation"])) for s in there["splits"])
    except (ValueError, KeyError, TypeError) as error:
        raise BenchError(f"{zoo.url}/{FILE} cannot be read: {error!r}") from error
    if there.get("format") != FORMAT or read != SPLITS:
        raise BenchError(
            f"{zoo.url}/{FILE} holds other splits than this version makes: figures would not "
            "compare. Move the file away to use the new ones"
        )
    return read


def split_rows(table: pa.Table, folds: Folds) -> Split:
    """The rows of a split, by the column `fold`."""
    fold = table.column("fold").to_numpy()
    test, validation = np.isin(fold, folds.test), np.isin(fold, folds.validation)
    return Split(~test & ~validation, validation, test)


def check_split(train: Examples, validation: Examples, test: Examples) -> None:
    """Refuse a split in which a run, a near-twin or the very same weights are on two sides.

    Raises:
        LeakError: If something is, saying what.
        BenchError: If a side is empty.
    """
    sides = _filled(train, validation, test)
    for what in ("run_id", "twins"):
        _refuse_shared(what, {n: side.table.column(what).to_pylist() for n, side in sides.items()})
    _refuse_shared("weights", {name: _weight_keys(side) for name, side in sides.items()})


def check_across(train: Examples, validation: Examples, test: Examples) -> None:
    """Refuse a test zoo that has a run, or the very same matrix A, of those learned from.

    Near-twins may be on both sides: two zoos of one grid have other nets of the same
    hyperparameters. Whole rows of weights would differ even where blocks are copies.

    Raises:
        LeakError: If it has, saying what.
        BenchError: If a side is empty.
    """
    sides = _filled(train, validation, test)
    _refuse_shared(
        "run_id", {n: side.table.column("run_id").to_pylist() for n, side in sides.items()}
    )
    _refuse_shared("matrix A", {name: _matrix_keys(side) for name, side in sides.items()})


def _filled(train: Examples, validation: Examples, test: Examples) -> dict[str, Examples]:
    sides = {"training": train, "validation": validation, "test": test}
    for name, side in sides.items():
        if not len(side):
            raise BenchError(f"the {name} set is empty: take a larger zoo, or other checkpoints")
    return sides


def _refuse_shared(what: str, keys: Mapping[str, Iterable[str]]) -> None:
    seen: dict[str, str] = {}
    for name, there in keys.items():
        for key in set(there):
            if key in seen:
                raise LeakError(
                    f"{what} {key} is in the {seen[key]} and in the {name} set: the test "
                    "figures would be too good"
                )
            seen[key] = name


def _weight_keys(examples: Examples) -> list[str]:
    return _row_keys(examples.weights.numpy())


def _matrix_keys(examples: Examples) -> list[str]:
    """Of A of every block; those that decayed to 0 are alike without being copies."""
    keys: list[str] = []
    shape = examples.shape.owned
    for number in range(shape.blocks):
        offset, dims = shape.stored[f"blocks.{number}.A"]
        matrices = examples.weights[:, offset : offset + int(np.prod(dims))].numpy()
        keys += _row_keys(matrices[matrices.any(axis=1)])
    return keys


def _row_keys(rows: Float[np.ndarray, "n m"]) -> list[str]:
    rows = np.ascontiguousarray(rows)
    return [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in rows]
