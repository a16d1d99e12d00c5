"""Bounds against what is counted: of all permutations, and of many random ones."""

import math
from itertools import permutations, product

import pytest
import torch

from transformer_nfn.kinship.descent.chance import (
    combined,
    log_fixed_points,
    log_increasing,
    longest_increasing,
    smallest,
)

ORDERS = list(permutations(range(5)))
#: What a rule may say of five units: each has its own number, two the same, all the same.
RULES = [(0, 1, 2, 3, 4), (3, 1, 4, 2, 0), (0, 0, 2, 3, 4), (1, 1, 3, 3, 0), (2, 2, 2, 2, 2)]


def fixed(rule: tuple[int, ...], order: tuple[int, ...]) -> int:
    """Places at which the unit that stands there is said to be the one of that number."""
    return sum(rule[unit] == place for place, unit in enumerate(order))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", range(6))
def test_no_rule_keeps_more_numbers_than_the_bound(rule: tuple[int, ...], count: int) -> None:
    seen = sum(fixed(rule, order) >= count for order in ORDERS) / len(ORDERS)
    assert seen <= math.exp(log_fixed_points(count)) * (1 + 1e-12)


def test_the_bound_is_reached() -> None:
    assert math.exp(log_fixed_points(5)) == pytest.approx(1 / len(ORDERS))


@pytest.mark.parametrize("first", RULES[:3])
@pytest.mark.parametrize("second", RULES[1:])
@pytest.mark.parametrize("tied", [False, True])
def test_several_groups(first: tuple[int, ...], second: tuple[int, ...], tied: bool) -> None:
    """In any orders of two groups, independent or the same."""
    both = [(one, one) for one in ORDERS] if tied else list(product(ORDERS, repeat=2))
    kept = [fixed(first, one) + fixed(second, two) for one, two in both]
    assert max(kept) > 1
    for count in range(11):
        seen = sum(each >= count for each in kept) / len(kept)
        assert seen <= math.exp(log_fixed_points(count, groups=2)) * (1 + 1e-12), count


def test_heads_of_groups_are_not_heads() -> None:
    """Of 32 heads in 8 groups at least 6 keep their numbers more often than 1/6! says."""
    generator = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(4000):
        groups = torch.randperm(8, generator=generator)
        kept = sum(
            int((torch.randperm(4, generator=generator) == torch.arange(4)).sum())
            for place, group in enumerate(groups.tolist())
            if place == group
        )
        hits += kept >= 6
    assert hits / 4000 > 3 / math.factorial(6)
    assert hits / 4000 <= math.exp(log_fixed_points(6, groups=8))


def test_limits() -> None:
    assert log_increasing(4, 3) == -math.inf
    assert log_fixed_points(0) == 0
    assert log_fixed_points(100_000) < -1e6


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", range(1, 6))
def test_growing_orders(rule: tuple[int, ...], count: int) -> None:
    seen = [longest_increasing([rule[unit] for unit in order]) >= count for order in ORDERS]
    assert sum(seen) / len(seen) <= math.exp(log_increasing(count, 5)) * (1 + 1e-12)


def test_equal_numbers_do_not_grow() -> None:
    assert longest_increasing([2, 2, 2]) == 1
    assert longest_increasing([]) == 0


def test_fisher() -> None:
    """Of two p-values the product w has the p-value w (1 - log w)."""
    both = [math.log(0.01), math.log(0.2)]
    w = 0.002
    assert math.exp(combined(both)) == pytest.approx(w * (1 - math.log(w)))
    assert combined([]) == 0
    assert combined([-math.inf, -1.0]) == -math.inf
    assert combined([-1e5] * 30) < -2.9e6


def test_fisher_of_independent_counts_is_valid() -> None:
    """Three blocks of four units each, all orders: p is never too small."""
    logs = [log_fixed_points(fixed((0, 1, 2, 3), order)) for order in permutations(range(4))]
    found = torch.tensor([combined(some) for some in product(logs, repeat=3)])
    for level in (0.5, 0.1, 0.05, 0.01, 0.001):
        assert (found <= math.log(level)).double().mean() <= level, level


def test_the_smallest_pays_for_all_that_were_tried() -> None:
    assert smallest([-10.0, -2.0], 4) == pytest.approx(-10 + math.log(4))
    assert smallest([-0.1], 40) == 0
    assert smallest([], 0) == 0
