"""What weights say beyond the recipe: τ among runs of one configuration.

Runs of one group of near-twins were trained alike and differ in their seed, or in an L2 that makes
no difference. What tells them apart is not known from how they were trained.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_nfn.bench.kendall import resampled_counts
from transformer_nfn.bench.report.scores import (
    DRAWS,
    LEAST_GROUPS,
    Comparison,
    Interval,
    interval_of,
    resampled_seeds,
)
from transformer_nfn.bench.report.tables import figure, shown, table, titled

#: Times that accuracies are measured again for the noise ceiling.
_MEASURED = 20


class Pairs(NamedTuple):
    """The pairs of rows of one split that are compared: of one group and one checkpoint.

    Attributes:
        group: Of each pair.
        one: The row of its first run.
        other: The row of its second run.
    """

    group: np.ndarray
    one: np.ndarray
    other: np.ndarray


def pairs_within(comparison: Comparison, split: int) -> Pairs:
    """The pairs of a split."""
    cell, group = comparison.first_cell(split), comparison.twins(split)
    checkpoint = np.unique(cell.table.column("checkpoint").to_pylist(), return_inverse=True)[1]
    alike = group * (checkpoint.max(initial=0) + 1) + checkpoint
    order = np.argsort(alike, kind="stable")
    _, starts = np.unique(alike[order], return_index=True)
    found = [
        (rows[i], rows[j])
        for rows in np.split(order, starts[1:])
        for i in range(len(rows))
        for j in range(i)
    ]
    one, other = np.array(found, dtype=np.int64).reshape(-1, 2).T
    return Pairs(group[one], one, other)


def tau_within(comparison: Comparison, model: str) -> Interval | None:
    """τ-b over all pairs of all groups; None if few configurations were tested twice.

    The interval is by a bootstrap over groups within splits, and over seeds where there are
    several.
    """
    total, draws = np.zeros(3), np.zeros((DRAWS, 3))
    if groups_within(comparison, comparison.splits_of(model))[0] < LEAST_GROUPS:
        return None
    for split in comparison.splits_of(model):
        pairs = pairs_within(comparison, split)
        if not len(pairs.group):
            continue
        accuracy = comparison.accuracy(split)
        sums = [_sums(one, accuracy, pairs) for one in comparison.predicted(model, split)]
        names = np.unique(pairs.group)
        counts = resampled_counts(names, DRAWS, comparison.generator(split)).astype(np.float64)
        total += np.mean([one.sum(axis=0) for one in sums], axis=0)
        draws += resampled_seeds(np.stack([counts @ one for one in sums]), split)
    return interval_of(float(_tau(total)), _tau(draws)) if total[2] else None


def ceiling_within(comparison: Comparison) -> float | None:
    """τ within between accuracies and the same drawn again, see `Comparison.ceiling`."""
    examples = comparison.examples_behind
    if examples is None:
        return None
    generator, total = np.random.default_rng(0), np.zeros(3)
    for split in comparison.every_split:
        pairs, accuracy = pairs_within(comparison, split), comparison.accuracy(split)
        for _ in range(_MEASURED):
            measured = generator.binomial(examples, accuracy) / examples
            total += _sums(measured, accuracy, pairs).sum(axis=0)
    return float(_tau(total)) if total[2] else None


def within_table(comparison: Comparison) -> str | None:
    """τ within of each model beside its τ, in that order; None if there is nothing to compare."""
    taus = {model: tau_within(comparison, model) for model in comparison.models}
    known = {model: tau for model, tau in taus.items() if tau is not None}
    if not known:
        return None
    rows = [
        [
            titled(comparison, model),
            shown(known[model]),
            f"{groups_within(comparison, comparison.splits_of(model))[0]}",
            f"{comparison.tau(model).mean:.3f}",
        ]
        for model in comparison.ranking()
        if model in known
    ]
    within, whole = ceiling_within(comparison), comparison.ceiling()
    rows.append(["noise ceiling", figure(within), "", figure(whole)])
    return table(["model", "τ within a configuration", "configurations", "τ of all rows"], rows)


def groups_within(comparison: Comparison, splits: Sequence[int]) -> tuple[int, int]:
    """How many configurations, and how many pairs of rows, τ within is of in some splits."""
    found = [pairs_within(comparison, split).group for split in splits]
    return sum(len(np.unique(group)) for group in found), sum(map(len, found))


def _sums(predicted: np.ndarray, accuracy: np.ndarray, pairs: Pairs) -> np.ndarray:
    """For each group: Σ sx·sy, Σ|sx| and Σ|sy| over its pairs, with signs of differences."""
    x = np.sign(predicted[pairs.one] - predicted[pairs.other])
    y = np.sign(accuracy[pairs.one] - accuracy[pairs.other])
    names, place = np.unique(pairs.group, return_inverse=True)
    sums = np.zeros((len(names), 3))
    np.add.at(sums, place, np.stack([x * y, np.abs(x), np.abs(y)], axis=1))
    return sums


def _tau(sums: np.ndarray) -> np.ndarray:
    """τ-b of sums; 0 where all predictions or all accuracies are equal."""
    untied = np.sqrt(sums[..., 1] * sums[..., 2])
    return np.where(untied > 0, sums[..., 0] / np.where(untied > 0, untied, 1.0), 0.0)
