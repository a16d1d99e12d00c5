"""From finished cells to figures: τ with intervals, paired differences, costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.kendall import (
    examples_behind,
    kendall_tau,
    resampled_counts,
    tau_ceiling,
    tau_of_resamples,
)
from transformer_nfn.bench.protocol.computing import ANSWER, Finished
from transformer_nfn.bench.protocol.loading import Threshold
from transformer_nfn.bench.protocol.record import changes_of
from transformer_nfn.bench.report.largest import main_cells

DRAWS = 1000
#: Tested groups of near-twins in all from which on an order is claimed: of two equal models,
#: intervals from fewer tell one apart more often than in 5 % of the cases.
LEAST_GROUPS = 20
NONE = Threshold("none", 0.0)
#: Columns in which all cells of a split are alike: run ids do not depend on what came of a run.
_SAME_ROWS = ("run_id", "checkpoint", "twins", "test_accuracy")
_SEED = 0


#: What may be said of one model against another.
Order = Literal["ahead", "behind", "not told apart", "had fewer runs", "had more runs"]
#: The finished cells of a model, by split and by seed.
BySplit = dict[int, dict[int, Finished]]


class Interval(NamedTuple):
    """A mean over splits, and 95 % of what it would be with other test runs and seeds.

    A bootstrap: the splits are what they are, so other runs to learn from are not in it.
    """

    mean: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True, eq=False)
class Comparison:
    """Models tested on the same rows: one zoo, one way to prepare it.

    A costly model may have been fitted to fewer splits than others: its figures are of its own
    splits, and two models are compared in the splits that both have. It may also have been fitted
    to fewer runs: then it can be ahead of one that had more, which is never called ahead of it.

    Attributes:
        zoo: The zoo's name.
        track: independent or shared starts.
        cells: For each model its finished cells, by split and by seed.
    """

    zoo: str
    track: str
    cells: dict[str, BySplit]

    def __post_init__(self) -> None:
        """Check that all models were tested on the same rows."""
        for split in self.every_split:
            first: tuple[str, list[tuple[Any, ...]]] | None = None
            for model, by_split in self.cells.items():
                for cell in by_split.get(split, {}).values():
                    columns = [cell.table.column(one).to_pylist() for one in _SAME_ROWS]
                    rows = list(zip(*columns, strict=True))
                    first = first or (model, rows)
                    if rows != first[1]:
                        raise BenchError(
                            f"{model} was tested on other rows of {self.zoo}, split {split}, than "
                            f"{first[0]}, or on another build of that zoo: they cannot be compared"
                        )

    @property
    def record(self) -> dict[str, Any]:
        """The record of one cell, for what all of them share: folder, task, runs, thresholds."""
        by_split = next(iter(self.cells.values()))
        return next(iter(next(iter(by_split.values())).values())).record

    @property
    def models(self) -> list[str]:
        """The models, in the order given."""
        return list(self.cells)

    @cached_property
    def splits(self) -> list[int]:
        """The splits that every model has."""
        return sorted(set.intersection(*(set(cells) for cells in self.cells.values())))

    @cached_property
    def every_split(self) -> list[int]:
        """The splits that some model has."""
        return sorted(set().union(*self.cells.values()))

    def splits_of(self, *models: str) -> list[int]:
        """The splits that a model has, or that all of several have."""
        return sorted(set.intersection(*(set(self.cells[model]) for model in models)))

    @cached_property
    def thresholds(self) -> list[Threshold]:
        """Quantiles of the zoo's accuracies and the paper's thresholds; see `data.thresholds`."""
        return [Threshold(name, accuracy) for name, accuracy in self.record["thresholds"]]

    def first_cell(self, split: int) -> Finished:
        """A cell of a split, for what is the same in all of them: the rows tested."""
        having = next(by_split for by_split in self.cells.values() if split in by_split)
        return next(iter(having[split].values()))

    def accuracy(self, split: int) -> np.ndarray:
        """The accuracies of a split's test rows, or what else was asked of them."""
        cell = self.first_cell(split)
        return cell.column(ANSWER if ANSWER in cell.table.column_names else "test_accuracy")

    def seeds(self, model: str, split: int) -> list[int]:
        """The seeds that a model has in a split."""
        return sorted(self.cells[model][split])

    def predicted(self, model: str, split: int, column: str = "predicted") -> list[np.ndarray]:
        """What a model says of a split's test rows, with each of its seeds."""
        by_seed = self.cells[model][split]
        return [by_seed[seed].column(column) for seed in self.seeds(model, split)]

    def by_split(
        self,
        model: str,
        threshold: Threshold = NONE,
        column: str = "predicted",
        splits: Sequence[int] | None = None,
    ) -> list[float]:
        """τ on the test rows of each split that reach a threshold; the mean over seeds.

        Args:
            model: Its name.
            threshold: The lowest accuracy of the rows that count.
            column: What was predicted, or "moved": the same after a random group element.
            splits: Which of them; all that the model has if None.
        """
        return [
            float(np.mean(self.by_seed(model, split, threshold, column)))
            for split in (self.splits_of(model) if splits is None else splits)
        ]

    def by_seed(
        self, model: str, split: int, threshold: Threshold = NONE, column: str = "predicted"
    ) -> list[float]:
        """τ with each of the seeds that a model has in a split."""
        accuracy = self.accuracy(split)
        kept = accuracy >= threshold.accuracy
        return [
            kendall_tau(predicted[kept], accuracy[kept])
            for predicted in self.predicted(model, split, column)
        ]

    def _draws(
        self, model: str, threshold: Threshold, column: str, splits: Sequence[int]
    ) -> np.ndarray:
        """The mean over splits in each of the resamples; the same resamples for all models."""
        key = (model, threshold, column)
        if key not in self._resampled:
            self._resampled[key] = self.split_draws(model, threshold, column)
        places = [self.splits_of(model).index(split) for split in splits]
        mean: np.ndarray = self._resampled[key][places].mean(axis=0)
        return mean

    def split_draws(
        self, model: str, threshold: Threshold = NONE, column: str = "predicted"
    ) -> np.ndarray:
        """τ of each split in each of the resamples: other configurations, other seeds."""
        draws = []
        for split in self.splits_of(model):
            accuracy, twins = self.accuracy(split), self.twins(split)
            kept = accuracy >= threshold.accuracy
            if split not in self._counts:
                self._counts[split] = resampled_counts(twins, DRAWS, self.generator(split))
            counts = self._counts[split][:, kept]
            taus = [
                tau_of_resamples(predicted[kept], accuracy[kept], twins[kept], counts)
                for predicted in self.predicted(model, split, column)
            ]
            draws.append(resampled_seeds(np.stack(taus), split))
        return np.stack(draws)

    def twins(self, split: int) -> np.ndarray:
        """Which group of near-twins each test row of a split belongs to."""
        twins = self.first_cell(split).table.column("twins").to_pylist()
        groups: np.ndarray = np.unique(twins, return_inverse=True)[1]
        return groups

    def generator(self, split: int) -> np.random.Generator:
        """What the resamples of a split are drawn with.

        The same rows in every split are drawn alike: they are one sample, not five.
        """
        return np.random.default_rng([_SEED, 0 if self._one_test_set else split])

    @cached_property
    def _one_test_set(self) -> bool:
        tested = {
            tuple(self.first_cell(split).table.column("run_id").to_pylist())
            for split in self.every_split
        }
        return len(tested) == 1 < len(self.every_split)

    @cached_property
    def _counts(self) -> dict[int, np.ndarray]:
        """How often each test row of a split occurs in each resample: drawing takes long."""
        return {}

    @cached_property
    def _resampled(self) -> dict[tuple[str, Threshold, str], np.ndarray]:
        return {}

    def tau(self, model: str, threshold: Threshold = NONE, column: str = "predicted") -> Interval:
        """Mean over splits with its interval; column "moved" is after a random group element."""
        mean = float(np.mean(self.by_split(model, threshold, column)))
        return interval_of(mean, self._draws(model, threshold, column, self.splits_of(model)))

    def difference(self, model: str, other: str, threshold: Threshold = NONE) -> Interval:
        """By how much a model is ahead of another, on the same resamples of the same splits."""
        both, pair = self.splits_of(model, other), (model, other)
        mine, its = (np.mean(self.by_split(one, threshold, splits=both)) for one in pair)
        drawn, its_drawn = (self._draws(one, threshold, "predicted", both) for one in pair)
        return interval_of(float(mine - its), drawn - its_drawn)

    def train_runs(self, model: str) -> int | None:
        """Among how many of the zoo's first runs a model was fitted; None if among all of them."""
        by_seed = next(iter(self.cells[model].values()))
        found: int | None = next(iter(by_seed.values())).record.get("train_runs")
        return found

    def had_fewer(self, model: str, other: str) -> bool:
        """Whether a model was fitted among fewer runs than another, to its disadvantage."""
        mine, its = self.train_runs(model), self.train_runs(other)
        return mine is not None and (its is None or mine < its)

    def configurations(
        self, threshold: Threshold = NONE, splits: Sequence[int] | None = None
    ) -> int:
        """How many groups of near-twins have test rows that reach a threshold.

        Args:
            threshold: The lowest accuracy of the rows that count; all if none.
            splits: In which splits together; all if None.
        """
        found = set[str]()
        for split in self.every_split if splits is None else splits:
            twins = self.first_cell(split).column("twins").astype(str)
            if threshold != NONE:
                twins = twins[self.accuracy(split) >= threshold.accuracy]
            found.update(twins.tolist())
        return len(found)

    def order(self, model: str, other: str) -> Order:
        """What may be said of two models: an order only where what was tested shows it.

        "had fewer runs" and "had more runs" stand for behind and ahead where that may be the cause.
        """
        common = self.splits_of(model, other)
        if self.configurations(splits=common) < LEAST_GROUPS:
            return "not told apart"
        gap = self.difference(model, other)
        if not gap.excludes_zero:
            return "not told apart"
        if gap.mean > 0:
            return "had more runs" if self.had_fewer(other, model) else "ahead"
        return "had fewer runs" if self.had_fewer(model, other) else "behind"

    def in_splits(self, splits: Sequence[int]) -> "Comparison":
        """The same with some splits only, and the models that have all of them."""
        cells = {
            model: {split: by_split[split] for split in splits}
            for model, by_split in self.cells.items()
            if set(splits) <= by_split.keys()
        }
        return Comparison(self.zoo, self.track, cells)

    def evened(self) -> "Comparison":
        """The same with the splits only that every model has."""
        return self.in_splits(self.splits) if self.splits else self

    def has_moved(self, model: str) -> bool:
        """Whether a model was also tested after a random group element."""
        cells = [cell for by_seed in self.cells[model].values() for cell in by_seed.values()]
        return all("moved" in cell.table.column_names for cell in cells)

    def change_under_group(self, model: str) -> tuple[float, float]:
        """By how much τ changes under a random group element: in the mean, at most in a split."""
        before, after = self.by_split(model), self.by_split(model, column="moved")
        changes = np.array(after) - np.array(before)
        return float(changes.mean()), float(np.abs(changes).max())

    def ranking(
        self, threshold: Threshold = NONE, models: Sequence[str] | None = None
    ) -> list[str]:
        """The best first, in the splits that all of them have: means of others do not compare.

        Args:
            threshold: The lowest accuracy of the rows that count.
            models: Which of them; all if None.
        """
        ranked = self.models if models is None else list(models)
        common = self.splits_of(*ranked) if ranked else []

        def tau(model: str) -> float:
            return float(np.mean(self.by_split(model, threshold, splits=common or None)))

        return sorted(ranked, key=lambda model: -tau(model))

    def ceiling(self, threshold: Threshold = NONE) -> float | None:
        """τ between accuracies and the same drawn again: they are known from a finite test set.

        Each network's is drawn on its own. In truth all are measured on the same examples, which
        errors of alike networks share, so a perfect predictor may reach a little more.
        """
        size = self.examples_behind
        if size is None:
            return None
        generator = np.random.default_rng(_SEED)
        tests = [self.accuracy(split) for split in self.every_split]
        kept = [test[test >= threshold.accuracy] for test in tests]
        return float(np.mean([tau_ceiling(test, size, generator) for test in kept]))

    @cached_property
    def examples_behind(self) -> int | None:
        """How many examples accuracies were measured on, if they tell."""
        return examples_behind(np.concatenate([self.accuracy(s) for s in self.every_split]))

    def pooled(self, model: str) -> tuple[np.ndarray, np.ndarray]:
        """Predicted, with the first seed, and true accuracy of all test rows of its splits."""
        splits = self.splits_of(model)
        return (
            np.concatenate([self.predicted(model, split)[0] for split in splits]),
            np.concatenate([self.accuracy(split) for split in splits]),
        )

    def mean_of(self, model: str, field: str) -> float | None:
        """The mean of a figure over splits and seeds; None where it was not measured."""
        cells = [cell for by_seed in self.cells[model].values() for cell in by_seed.values()]
        values = [cell.record[field] for cell in cells]
        return None if any(value is None for value in values) else float(np.mean(values))


def interval_of(mean: float, draws: np.ndarray) -> Interval:
    """A mean, with the middle 95 % of its resamples."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(mean, float(low), float(high))


def resampled_seeds(taus: np.ndarray, split: int) -> np.ndarray:
    """The mean over seeds in each resample: seeds are drawn with replacement, if there are several.

    Args:
        taus: τ with each seed in each resample of the rows.
        split: Fits of other splits have other seeds, so theirs are drawn apart.
    """
    seeds, draws = taus.shape[:2]
    if seeds == 1:
        mean: np.ndarray = taus[0]
        return mean
    drawn = np.random.default_rng([_SEED, split, 1]).integers(seeds, size=(seeds, draws))
    mean = taus[drawn, np.arange(draws)].mean(axis=0)
    return mean


def comparisons(
    cells: Sequence[Finished],
    models: Sequence[str],
    *,
    augment: float | None = None,
    threshold: float | None = None,
    train_runs: int | None = None,
    splits: Sequence[int] | None = None,
    question: str = "accuracy",
    held_out: str | None = None,
    uneven: bool = False,
) -> list[Comparison]:
    """One comparison for each zoo that has these models.

    Learning curves, and cells tested on another zoo, have comparisons of their own.

    Args:
        cells: Finished cells.
        models: Their names, in the order wanted; those without a finished cell are left out.
        augment: Only cells with this augmentation.
        threshold: Only cells trained above this threshold.
        train_runs: Only cells that learned from the first N runs; from all if None.
        splits: Only these splits; all if None.
        question: Only cells that were asked this.
        held_out: Only cells tested on runs of this kind, which were not learned from.
        uneven: Keep the splits that only some of the models have, and of a model that was never
            fitted to the whole zoo, the fits among fewer runs; see `main_cells`.
    """
    asked = {"augment": augment, "threshold": threshold, "train_runs": train_runs}
    changes = changes_of({**asked, "question": question, "held_out": held_out})
    assert not (uneven and changes)  # only of the main tables
    found: dict[tuple[Any, ...], dict[str, BySplit]] = {}
    if uneven:
        cells = main_cells(cells)
    for cell in cells:
        record = cell.record
        wanted = record["model"] in models and (splits is None or record["split"] in splits)
        if wanted and (uneven or changes_of(record) == changes):
            key = (record["zoo"], record["track"], record["checkpoints"], record["runs"])
            add_cell(found.setdefault(key, {}).setdefault(record["model"], {}), cell)
    result = []
    for (zoo, track, _, runs), by_model in sorted(found.items(), key=lambda item: str(item[0])):
        ordered = {model: by_model[model] for model in models if model in by_model}
        comparison = Comparison(named_zoo(zoo, runs), track, ordered)
        result.append(comparison if uneven else comparison.evened())
    return result


def add_cell(by_split: BySplit, cell: Finished) -> None:
    """Put a cell where its split and its seed say."""
    by_split.setdefault(cell.record["split"], {})[cell.record["seed"]] = cell


def named_zoo(zoo: str, runs: int | None) -> str:
    """What a comparison calls a zoo of which only the first runs count, or all."""
    return zoo if runs is None else f"{zoo}, first {runs} runs"
