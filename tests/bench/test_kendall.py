from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from transformer_nfn.bench.kendall import (
    examples_behind,
    kendall_tau,
    resampled_counts,
    tau_ceiling,
    tau_of_resamples,
)


def draw(seed: int, rows: int, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and accuracies that agree somewhat; few levels make ties."""
    random = np.random.default_rng(seed)
    accuracy = random.integers(levels, size=rows) / levels
    return np.round(accuracy + random.normal(0, 0.3, rows), 1), accuracy


@given(st.integers(0, 10**6), st.integers(2, 60), st.sampled_from([2, 5, 1000]))
def test_tau_is_scipys(seed, rows, levels):
    predicted, accuracy = draw(seed, rows, levels)
    expected = kendalltau(predicted, accuracy).statistic
    assert kendall_tau(predicted, accuracy) == (0.0 if np.isnan(expected) else expected)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_constant_predictions_know_nothing(rows):
    assert kendall_tau(np.zeros(rows), np.arange(float(rows))) == 0.0


def by_pairs(
    predicted: np.ndarray, accuracy: np.ndarray, runs: np.ndarray, counts: np.ndarray
) -> float:
    """τ-b pair by pair, each as often as it counts."""
    agree = untied_x = untied_y = 0.0
    for i, j in combinations(range(len(runs)), 2):
        weight = counts[i] if runs[i] == runs[j] else counts[i] * counts[j]
        x, y = np.sign(predicted[i] - predicted[j]), np.sign(accuracy[i] - accuracy[j])
        agree += weight * x * y
        untied_x += weight * abs(x)
        untied_y += weight * abs(y)
    untied = np.sqrt(untied_x * untied_y)
    return float(agree / untied) if untied else 0.0


@given(st.integers(0, 10**6), st.integers(4, 20), st.sampled_from([3, 1000]))
def test_tau_of_resamples_is_counted_pair_by_pair(seed, rows, levels):
    predicted, accuracy = draw(seed, rows, levels)
    runs = np.arange(rows) // 2
    counts = resampled_counts(runs, 3, np.random.default_rng(seed))
    taus = tau_of_resamples(predicted, accuracy, runs, counts)
    expected = [by_pairs(predicted, accuracy, runs, count) for count in counts]
    np.testing.assert_allclose(taus, expected, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from([3, 1000]))
def test_every_run_once_is_scipys_tau(seed, rows, levels):
    predicted, accuracy = draw(seed, rows, levels)
    once = np.ones((1, rows), dtype=np.float32)
    (tau,) = tau_of_resamples(predicted, accuracy, np.arange(rows) // 3, once)
    assert tau == pytest.approx(kendall_tau(predicted, accuracy), abs=1e-6)


def test_resamples_are_not_biased_by_copies_of_a_run():
    """Rows of a run are hard to order: a run drawn twice must not count them four times."""
    random = np.random.default_rng(3)
    runs = np.repeat(np.arange(30), 6)
    accuracy = random.random(30)[runs] + random.normal(0, 1e-3, 180)
    predicted = random.normal(0, 1e-3, 180) + accuracy
    counts = resampled_counts(runs, 500, np.random.default_rng(4))
    taus = tau_of_resamples(predicted, accuracy, runs, counts)
    tau = kendall_tau(predicted, accuracy)
    assert abs(taus.mean() - tau) < 0.3 * taus.std()
    rows = [np.repeat(np.arange(180), count.astype(int)) for count in counts]
    with_copies = np.array([kendall_tau(predicted[one], accuracy[one]) for one in rows])
    assert tau - with_copies.mean() > with_copies.std()


def test_rows_of_a_run_are_drawn_together():
    runs = np.repeat(np.arange(20), 3)
    counts = resampled_counts(runs, 50, np.random.default_rng(0))
    by_run = counts.reshape(50, 20, 3)
    assert (by_run == by_run[:, :, :1]).all()
    assert (by_run[:, :, 0].sum(axis=1) == 20).all()
    assert counts.std() > 0.5


def test_drawing_runs_gives_wider_intervals_than_drawing_rows():
    random = np.random.default_rng(1)
    runs = np.repeat(np.arange(40), 3)
    accuracy = random.random(40)[runs] + random.normal(0, 0.001, 120)
    predicted = accuracy + (random.normal(0, 0.3, 40))[runs]
    widths = {}
    for name, units in {"runs": runs, "rows": np.arange(120)}.items():
        counts = resampled_counts(units, 400, np.random.default_rng(2))
        widths[name] = tau_of_resamples(predicted, accuracy, units, counts).std()
    assert widths["runs"] > 1.3 * widths["rows"]


def test_the_ceiling_rises_with_the_test_set():
    accuracy = np.random.default_rng(0).uniform(0.5, 0.9, 200)
    few, many = (tau_ceiling(accuracy, n, np.random.default_rng(1)) for n in (50, 10_000))
    assert 0.5 < few < 0.9 < many < 1


@pytest.mark.parametrize("size", [7, 360, 10_000])
def test_the_size_of_a_test_set_follows_from_its_accuracies(size):
    correct = np.random.default_rng(size).integers(size + 1, size=300)
    correct[:2] = 1, size - 1
    assert examples_behind(correct / size) == size


def test_accuracies_that_are_no_fractions_have_no_size():
    assert examples_behind(np.array([0.5, 1 / np.pi]), largest=1000) is None
