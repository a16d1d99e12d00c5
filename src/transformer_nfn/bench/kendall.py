"""Kendall's τ, and its uncertainty by a bootstrap over groups of near-twins."""

import numpy as np
from jaxtyping import Float32, Float64


def kendall_tau(predicted: Float64[np.ndarray, " n"], accuracy: Float64[np.ndarray, " n"]) -> float:
    """τ-b, as scipy computes it; 0 where all predictions or all accuracies are equal.

    Examples:
        >>> round(kendall_tau(np.array([0.1, 0.5, 0.4]), np.array([0.2, 0.3, 0.4])), 6)
        0.333333
    """
    if len(predicted) < 2:
        return 0.0
    from scipy.stats import kendalltau  # type: ignore[import-untyped]  # takes a second

    tau = float(kendalltau(predicted, accuracy).statistic)
    return 0.0 if np.isnan(tau) else tau


def resampled_counts(
    groups: np.ndarray, draws: int, generator: np.random.Generator
) -> Float32[np.ndarray, "draws n"]:
    """How often each row occurs when groups are drawn with replacement; their rows stay together.

    Checkpoints of one run, and runs of one configuration, are nearly copies of each other: drawing
    rows, or runs, would make intervals too narrow.

    Args:
        groups: Which group each row belongs to.
        draws: How many resamples.
        generator: The source of chance.
    """
    _, group = np.unique(groups, return_inverse=True)
    count = int(group.max()) + 1
    drawn = generator.multinomial(count, np.full(count, 1 / count), size=draws)
    return drawn[:, group].astype(np.float32)


def tau_of_resamples(
    predicted: Float64[np.ndarray, " n"],
    accuracy: Float64[np.ndarray, " n"],
    groups: np.ndarray,
    counts: Float32[np.ndarray, "draws n"],
) -> Float64[np.ndarray, " draws"]:
    """τ-b of every resample; `groups` and `counts` are those of `resampled_counts`.

    τ-b is Σ sx·sy / √(Σ|sx| · Σ|sy|) over pairs of rows, with the signs sx, sy of their
    differences. A pair of rows of two groups counts c_g·c_h times. A pair within a group counts c_g
    times: pairs between two copies of one group are left out, since they would make pairs within
    groups, which are the hardest, twice as heavy as they are, and every interval too low.
    """
    if not len(groups):
        return np.zeros(len(counts))
    order = np.argsort(groups, kind="stable")
    _, starts = np.unique(groups[order], return_index=True)
    x, y = predicted[order], accuracy[order]
    x_signs = np.sign(x[:, None] - x).astype(np.float32)
    y_signs = np.sign(y[:, None] - y).astype(np.float32)
    of_group = counts[:, order[starts]]  # draws g

    def pairs(signs: np.ndarray) -> np.ndarray:
        # Sums for each pair of groups first: the product with all draws is then much smaller.
        sums = np.add.reduceat(np.add.reduceat(signs, starts, axis=0), starts, axis=1)
        within = sums.diagonal().copy()
        np.fill_diagonal(sums, 0)
        summed: np.ndarray = np.einsum("dg,dg->d", of_group @ sums, of_group, dtype=np.float64)
        summed += of_group @ within
        return summed

    untied = np.sqrt(pairs(np.abs(x_signs)) * pairs(np.abs(y_signs)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(untied > 0, pairs(x_signs * y_signs) / untied, 0.0)


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
    sizes = np.arange(1, largest + 1)
    for value in accuracy:  # each leaves few of the sizes, so that most are tried once
        scaled = value * sizes
        sizes = sizes[np.abs(scaled - np.round(scaled)) < 1e-6]
        if not len(sizes):
            return None
    return int(sizes[0])
