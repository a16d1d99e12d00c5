"""The examples of a benchmark: which rows of a zoo count, its track and its thresholds."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Divided, Examples
from transformer_nfn.bench.protocol.splits import SPLITS, check_split, split_rows, stored_splits
from transformer_nfn.zoo.dataset import CachedRows, Zoo

Checkpoints = Literal["epochs", "last", "best", "all"]
Track = Literal["independent", "shared"]
#: Quantiles of a zoo's accuracies below which test rows are left out.
QUANTILES = (0.0, 0.25, 0.5, 0.75)
#: The paper's thresholds, used where every test set keeps so many rows.
PAPER_THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
ENOUGH_ROWS = 100


@dataclass(frozen=True)
class Threshold:
    """A lower bound on the accuracy of test rows, and what it is called."""

    name: str
    accuracy: float


def chosen_checkpoints(table: pa.Table, which: Checkpoints) -> np.ndarray:
    """Rows that count: the kept epochs, the last of them, the best, or all.

    The best row repeats one of the epochs whenever the best epoch was kept, so it is left out
    unless it is asked for.
    """
    checkpoint = np.array(table.column("checkpoint").to_pylist(), dtype=object)
    best = checkpoint == "best"
    if which == "all":
        return np.flatnonzero(checkpoint != "")
    if which == "best":
        return np.flatnonzero(best)
    epoch = table.column("epoch").to_numpy()
    if which == "last" and not best.all():
        return np.flatnonzero(~best & (epoch == epoch[~best].max()))
    return np.flatnonzero(~best)


def track_of(zoo: Zoo) -> Track:
    """`shared` if all runs of a zoo start from one seed, as in the paper."""
    recipe, source = zoo.description.get("recipe"), zoo.description.get("source", {})
    if source.get("starts") == "independent":  # gathered from people's own
        return "independent"
    shared = recipe is None or recipe.get("seeds") == "shared"  # imported: the published zoo
    return "shared" if shared else "independent"


def task_and_track(url: str) -> tuple[str, Track]:
    """What the networks of a zoo were trained on, and whether they have one start.

    Raises:
        BenchError: If it has no network.
    """
    table = chosen_table(url, "all", None)
    return table.column("task")[0].as_py(), track_of(Zoo(url))


def load_examples(url: str, checkpoints: Checkpoints, runs: int | None) -> Examples:
    """The rows of a zoo that count, in memory.

    Args:
        url: The zoo's folder.
        checkpoints: Which rows of a run.
        runs: Only the first N runs of the recipe; all if None.

    Raises:
        BenchError: If none are left.
    """
    return _examples(url, tuple(Zoo(url).names()), checkpoints, runs)


def data_digest(url: str, checkpoints: Checkpoints, runs: int | None) -> str:
    """A hash of the rows that count: a zoo that grew is other data, a copied one is the same."""
    return _digest(url, tuple(Zoo(url).names()), checkpoints, runs)


# What was read is kept for the next cell; the names of the shards are part of the key, so that a
# zoo that grows while a process lives is read again.


@lru_cache(maxsize=2)
def _examples(
    url: str, names: tuple[str, ...], checkpoints: Checkpoints, runs: int | None
) -> Examples:
    cached, rows = _chosen(url, checkpoints, runs)
    weights = torch.from_numpy(cached.weights[rows])
    return Examples(cached.table.take(rows), weights, cached.shape)


@lru_cache(maxsize=64)
def _digest(url: str, names: tuple[str, ...], checkpoints: Checkpoints, runs: int | None) -> str:
    cached, rows = _chosen(url, checkpoints, runs)
    digests = cached.table.column("digest").take(rows).to_pylist()
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def chosen_table(url: str, checkpoints: Checkpoints, runs: int | None) -> pa.Table:
    """The columns of the rows that count, without their weights."""
    cached, rows = _chosen(url, checkpoints, runs)
    return cached.table.take(rows)


def _chosen(url: str, checkpoints: Checkpoints, runs: int | None) -> tuple[CachedRows, np.ndarray]:
    cached = Zoo(url).cached()
    rows = chosen_checkpoints(cached.table, checkpoints)
    if runs is not None:
        rows = rows[cached.table.column("run").to_numpy()[rows] < runs]
    if not len(rows):
        raise BenchError(f"no row of {url} is left with checkpoints={checkpoints!r}, runs={runs}")
    return cached, rows


def divide(url: str, examples: Examples, number: int) -> Divided:
    """Split a zoo and make sure that nothing leaks."""
    folds = stored_splits(Zoo(url))
    if not 0 <= number < len(folds):
        raise BenchError(f"splits are numbered 0 to {len(SPLITS) - 1}, got {number}")
    masks = split_rows(examples.table, folds[number])
    divided = Divided(*(examples.take(mask) for mask in masks))
    check_split(divided.train, divided.validation, divided.test)
    return divided


def thinned(divided: Divided, runs: int) -> Divided:
    """A split as the first N runs of the zoo have it, but with all of its test rows."""
    train, validation = (
        side.take(side.column("run") < runs) for side in (divided.train, divided.validation)
    )
    return Divided(train, validation, divided.test)


def leaving_out(bounds: Sequence[Threshold], accuracy: np.ndarray) -> list[Threshold]:
    """Those that leave some rows out, of equal ones the first."""
    found: dict[float, Threshold] = {}
    for bound in bounds:
        if (accuracy < bound.accuracy).any():
            found.setdefault(bound.accuracy, bound)
    return list(found.values())


def thresholds(examples: Examples) -> list[Threshold]:
    """The quantiles of a zoo's accuracies, and the paper's thresholds where enough rows remain."""
    accuracy = examples.accuracy
    test_sets = [accuracy[split_rows(examples.table, folds).test] for folds in SPLITS]
    chosen = [Threshold("none", 0.0)]
    chosen += [
        Threshold(f"best {100 - 100 * quantile:.0f} %", float(np.quantile(accuracy, quantile)))
        for quantile in QUANTILES[1:]
    ]
    chosen += [
        Threshold(f"≥ {100 * bound:.0f} %", bound)
        for bound in PAPER_THRESHOLDS
        if all((test >= bound).sum() >= ENOUGH_ROWS for test in test_sets)
    ]
    return chosen
