import numpy as np
import pytest

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.report.curves import Curves, fit_curves, learning_curve

SIZES = np.array([75.0, 150.0, 300.0, 600.0])
FAR = 16_000


def planted(a: float, b: float, c: float, sizes: np.ndarray = SIZES) -> np.ndarray:
    return a - b * sizes**-c


@pytest.mark.parametrize(("a", "b", "c"), [(0.9, 2.0, 0.5), (0.95, 1.0, 0.25), (0.8, 30.0, 1.2)])
def test_a_planted_curve_is_recovered(a: float, b: float, c: float) -> None:
    curve = fit_curves(SIZES, planted(a, b, c)[:, None], 0.97)
    assert curve.c[0] == pytest.approx(c, rel=0.03)
    for size in (100, 600, 2000, FAR):
        expected = planted(a, b, c, np.array([float(size)]))
        np.testing.assert_allclose(curve.at(size), expected, atol=2e-3)


def test_many_curves_are_fitted_as_each_alone() -> None:
    taus = np.stack([planted(0.9, 2.0, 0.5), planted(0.7, 0.0, 1.0), planted(0.9, 30, 1.0)], 1)
    together = fit_curves(SIZES, taus, 0.95).at(FAR)
    alone = [fit_curves(SIZES, taus[:, [number]], 0.95).at(FAR)[0] for number in range(3)]
    np.testing.assert_allclose(together, alone)


def test_a_flat_curve_stays_flat() -> None:
    curve = fit_curves(SIZES, np.full((4, 1), 0.6), 0.97)
    np.testing.assert_allclose([curve.at(size)[0] for size in (75, 600, FAR)], 0.6)


def test_a_falling_curve_is_taken_for_flat() -> None:
    curve = fit_curves(SIZES, np.array([[0.7], [0.6], [0.65], [0.61]]), 0.97)
    np.testing.assert_allclose(curve.at(FAR), 0.64)


def test_no_curve_goes_above_the_ceiling() -> None:
    rising = np.array([[0.4], [0.5], [0.6], [0.7]])  # a straight line over log n
    for ceiling in (0.75, 0.95):
        curve = fit_curves(SIZES, rising, ceiling)
        assert curve.a[0] <= ceiling
        assert 0.69 < curve.at(FAR)[0] <= ceiling


def test_fewer_than_three_sizes_are_refused() -> None:
    with pytest.raises(BenchError, match="3 sizes"):
        fit_curves(SIZES[:2], np.zeros((2, 1)), 1.0)


def noisy(seed: int, splits: int = 5, draws: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Points around a planted curve, each split with its own level, and resamples around them."""
    random = np.random.default_rng(seed)
    level = random.normal(0, 0.01, splits)
    taus = planted(0.9, 2.0, 0.5)[:, None] + level + random.normal(0, 0.005, (4, splits))
    return taus, taus[..., None] + random.normal(0, 0.005, (4, splits, draws))


def test_the_interval_covers_the_truth() -> None:
    truth = planted(0.9, 2.0, 0.5, np.array([float(FAR)]))[0]
    covered = 0
    for seed in range(40):
        interval = learning_curve(SIZES, *noisy(seed), 0.97).at(FAR)
        covered += interval.low <= truth <= interval.high
    assert covered >= 33  # five splits make intervals a little too narrow


def test_noise_makes_the_interval_wider_far_away() -> None:
    curve = learning_curve(SIZES, *noisy(0), 0.97)
    near, far = curve.at(600), curve.at(FAR)
    assert near.high - near.low < far.high - far.low
    assert near.low < near.mean < near.high


def test_one_split_is_enough() -> None:
    taus, draws = noisy(1, splits=1)
    assert learning_curve(SIZES, taus, draws, 0.97).at(FAR).low > 0.75


def test_a_curve_is_in_units_of_its_largest_size() -> None:
    one = Curves(np.array([0.9]), np.array([0.1]), np.array([0.5]), 600.0)
    np.testing.assert_allclose(one.at(600), 0.8)
    np.testing.assert_allclose(one.at(2400), 0.85)
