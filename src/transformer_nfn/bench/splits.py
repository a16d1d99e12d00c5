"""Five fixed ways to divide a zoo into training, validation and test runs."""

import hashlib
import json
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from jaxtyping import Bool

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
        there = json.loads(zoo.root.read_bytes(FILE))
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
    sides = {"training": train, "validation": validation, "test": test}
    for name, side in sides.items():
        if not len(side):
            raise BenchError(f"the {name} set is empty: take a larger zoo, or other checkpoints")
    for what in ("run_id", "twins", "weights"):
        seen: dict[str, str] = {}
        for name, side in sides.items():
            keys = _weight_keys(side) if what == "weights" else side.table.column(what).to_pylist()
            for key in set(keys):
                if key in seen:
                    raise LeakError(
                        f"{what} {key} is in the {seen[key]} and in the {name} set: the test "
                        "figures would be too good"
                    )
                seen[key] = name


def _weight_keys(examples: Examples) -> list[str]:
    rows = np.ascontiguousarray(examples.weights.numpy())
    return [hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest() for row in rows]
