"""Kendall's τ, and its uncertainty by a bootstrap over runs."""

import numpy as np
from jaxtyping import Float32, Float64, Integer
from scipy.stats import kendalltau  # type: ignore[import-untyped]


def kendall_tau(predicted: Float64[np.ndarray, " n"], accuracy: Float64[np.ndarray, " n"]) -> float:
    """τ-b, as scipy computes it; 0 where all predictions or all accuracies are equal.

    Examples:
        >>> round(kendall_tau(np.array([0.1, 0.5, 0.4]), np.array([0.2, 0.3, 0.4])), 6)
        0.333333
    """
    if len(predicted) < 2:
        return 0.0
    tau = float(kendalltau(predicted, accuracy).statistic)
    return 0.0 if np.isnan(tau) else tau


def resampled_counts(
    runs: Integer[np.ndarray, " n"], draws: int, generator: np.random.Generator
) -> Float32[np.ndarray, "draws n"]:
    """How often each row occurs when runs are drawn with replacement; rows of a run stay together.

    Rows of one run are nearly copies of each other: drawing rows would make intervals too narrow.
    """
    _, run = np.unique(runs, return_inverse=True)
    count = int(run.max()) + 1
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=draws)
    return drawn[:, run].astype(np.float32)


def tau_of_resamples(
    predicted: Float64[np.ndarray, " n"],
    accuracy: Float64[np.ndarray, " n"],
    runs: Integer[np.ndarray, " n"],
    counts: Float32[np.ndarray, "draws n"],
) -> Float64[np.ndarray, " draws"]:
    """τ-b of every resample; `counts` are those of `resampled_counts`.

    τ-b is Σ sx·sy / √(Σ|sx| · Σ|sy|) over pairs of rows, with the signs sx, sy of their
    differences. A pair of rows of two runs counts c_r·c_s times. A pair within a run counts c_r
    times: pairs between two copies of one run are left out, since they would make pairs within
    runs, which are the hardest, twice as heavy as they are, and every interval too low.
    """
    x = np.sign(predicted[:, None] - predicted).astype(np.float32)
    y = np.sign(accuracy[:, None] - accuracy).astype(np.float32)
    same = runs[:, None] == runs

    def pairs(signs: np.ndarray) -> np.ndarray:
        between = np.where(same, np.float32(0), signs)
        within = np.where(same, signs, np.float32(0)).sum(axis=1)
        summed: np.ndarray = np.einsum("dn,dn->d", counts @ between, counts, dtype=np.float64)
        summed += counts @ within
        return summed

    untied = np.sqrt(pairs(np.abs(x)) * pairs(np.abs(y)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(untied > 0, pairs(x * y) / untied, 0.0)


def tau_ceiling(
    accuracy: Float64[np.ndarray, " n"], examples: int, generator: np.random.Generator
) -> float:
    """τ that a predictor of the true accuracies would reach, accuracies being measured.

    A net's accuracy is known from a finite test set. The measured accuracies are taken for true
    ones and measured again: τ between both, mean over 20 draws.
    """
    taus = [
        kendall_tau(accuracy, generator.binomial(examples, accuracy) / examples) for _ in range(20)
    ]
    return float(np.mean(taus))


def examples_behind(accuracy: Float64[np.ndarray, " n"], largest: int = 100_000) -> int | None:
    """How many examples accuracies were measured on: the smallest n of which all are fractions.

    Examples:
        >>> examples_behind(np.array([0.25, 0.5, 0.1]))
        20
    """
    for size in range(1, largest + 1):
        scaled = accuracy * size
        if np.abs(scaled - np.round(scaled)).max() < 1e-6:
            return size
    return None
