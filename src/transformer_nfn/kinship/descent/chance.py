"""How likely it is that units of strangers keep their numbers: exact bounds, nothing simulated.

All of them are logarithms of p-values: of two networks with the same start they are far below the
smallest float. `docs/understand/kin.md` states and proves what they rest on.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np


def log_fixed_points(count: int, groups: int = 1) -> float:
    """Bound the probability that at least so many units keep their number.

    The units of each group stand in an order that is uniformly random, and any rule names for each
    unit the number of one in another network: in one group 1/k!. In several at least one has its
    share of the count; their orders need not be independent.

    Examples:
        >>> round(math.exp(log_fixed_points(3)), 4)
        0.1667
        >>> round(math.exp(log_fixed_points(7, groups=2)), 4)  # 2/4!
        0.0833
    """
    share = -(-count // groups)
    return min(math.log(groups) - math.lgamma(share + 1), 0.0)


def longest_increasing(numbers: Sequence[int]) -> int:
    """The length of the longest part of a sequence, in its order, that only grows.

    Examples:
        >>> longest_increasing([7, 0, 3, 1, 2, 9])
        4
    """
    ends: list[int] = []
    for number in numbers:
        place = bisect_left(ends, number)
        ends[place : place + 1] = [number]
    return len(ends)


def log_increasing(count: int, size: int) -> float:
    """Bound the probability that so many of `size` units stand in growing order: C(size, k) / k!.

    Where neurons were cut away, those that are left keep their order and not their numbers.

    Examples:
        >>> round(math.exp(log_increasing(4, 4)) * math.factorial(4), 6)
        1.0
    """
    if count > size:
        return -math.inf
    choose = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return min(choose - math.lgamma(count + 1), 0.0)


def smallest(logs: Iterable[float], tries: int) -> float:
    """The smallest of several p-values that may depend on each other, times how many there are."""
    return min(min(logs, default=0.0) + math.log(max(tries, 1)), 0.0)


def combined(logs: Iterable[float]) -> float:
    """Fisher's p-value of several independent ones.

    Examples:
        >>> round(math.exp(combined([math.log(0.01)])), 6)
        0.01
        >>> combined([0.0, 0.0])
        0.0
    """
    given = list(logs)
    total = -sum(given)
    if not given or total == 0:
        return 0.0
    if math.isinf(total):
        return -math.inf
    terms = [k * math.log(total) - math.lgamma(k + 1) for k in range(len(given))]
    return min(float(np.logaddexp.reduce(terms)) - total, 0.0)


def log10(value: float) -> float:
    """A natural logarithm to the base 10."""
    return value / math.log(10)
