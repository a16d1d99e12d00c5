"""Learning curves τ(n) = a − b n^(−c): fitted, bounded by the noise ceiling, and extrapolated."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.report.scores import Interval, interval_of

#: Fewer sizes than numbers of a curve say nothing of its shape.
LEAST_SIZES = 3
#: Exponents that are tried. Below, a curve is a straight line over log n without an end; above, it
#: is flat after its first points.
_EXPONENTS = np.geomspace(0.05, 2.0, 121)
_SEED = 0


class Curves(NamedTuple):
    """Curves a − b (n/unit)^(−c), some at a time.

    Attributes:
        a: What τ tends to; at most the ceiling.
        b: What is missing at n = unit; not negative, so no curve falls.
        c: How fast it is gained.
        unit: The largest size that was measured.
    """

    a: Float64[np.ndarray, " d"]
    b: Float64[np.ndarray, " d"]
    c: Float64[np.ndarray, " d"]
    unit: float

    def at(self, size: float | int) -> Float64[np.ndarray, " d"]:
        """τ of each curve at a size."""
        values: np.ndarray = self.a - self.b * (size / self.unit) ** -self.c
        return values


def fit_curves(
    sizes: Float64[np.ndarray, " s"], taus: Float64[np.ndarray, "s d"], ceiling: float | int
) -> Curves:
    """The curves of least squares with a ≤ ceiling and b ≥ 0, one for each column.

    For a fixed c it is a straight line in n^(−c), whose best place is free, on a = ceiling or on
    b = 0; the best of these over a grid of c is taken.

    Raises:
        BenchError: If there are fewer than three sizes.
    """
    if len(np.unique(sizes)) < LEAST_SIZES:
        raise BenchError(f"a learning curve wants {LEAST_SIZES} sizes, got {sorted(set(sizes))}")
    unit = float(sizes.max())
    best = np.zeros((3, taus.shape[1]))  # a, b, c
    least = np.full(taus.shape[1], np.inf)
    mean = taus.mean(axis=0)
    flat = np.minimum(mean, ceiling)
    for exponent in _EXPONENTS:
        x = (sizes / unit) ** -exponent
        around = x - x.mean()
        free = -(around @ taus) / (around @ around)
        bounded = np.maximum(0.0, (x @ (ceiling - taus)) / (x @ x))
        tried = (
            (mean + free * x.mean(), free),
            (np.full_like(mean, ceiling), bounded),
            (flat, np.zeros_like(mean)),
        )
        for a, b in tried:
            loss = ((taus - a + np.outer(x, b)) ** 2).sum(axis=0)
            better = (b >= 0) & (a <= ceiling) & (loss < least)
            best = np.where(better, np.stack([a, b, np.full_like(mean, exponent)]), best)
            least = np.where(better, loss, least)
    return Curves(best[0], best[1], best[2], unit)


class LearningCurve(NamedTuple):
    """The curve of one model, and those of its resamples.

    Attributes:
        curve: Fitted to all points.
        resamples: Fitted to a bootstrap over splits and, in each, over test runs.
    """

    curve: Curves
    resamples: Curves

    def at(self, size: float | int) -> Interval:
        """τ at a size, with 95 % of what the resamples say."""
        return interval_of(float(self.curve.at(size)[0]), self.resamples.at(size))


def learning_curve(
    sizes: Float64[np.ndarray, " s"],
    taus: Float64[np.ndarray, "s p"],
    draws: Float64[np.ndarray, "s p d"],
    ceiling: float | int,
) -> LearningCurve:
    """Fit the curve of a model to its τ in each split.

    Every split has every size, so the curve nearest to all points is the one nearest to their
    means.

    Args:
        sizes: Runs of the zoo.
        taus: τ at each size in each split.
        draws: The same on resampled test runs: a draw has the same runs at every size.
        ceiling: The noise ceiling.

    Raises:
        BenchError: If there are fewer than three sizes.
    """
    _, splits, count = draws.shape
    drawn = np.random.default_rng(_SEED).integers(splits, size=(splits, count))
    means = draws[:, drawn, np.arange(count)].mean(axis=1)  # s d
    return LearningCurve(
        fit_curves(sizes, taus.mean(axis=1, keepdims=True), ceiling),
        fit_curves(sizes, means, ceiling),
    )
