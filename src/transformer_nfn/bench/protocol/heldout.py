"""Extrapolation: runs of a kind that no model has learned from."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from jaxtyping import Bool

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.features.kinds import OPTIMIZERS

#: The share of runs with the largest learning rates, of each optimizer.
_LARGEST = 0.25


def _of_optimizer(name: str, examples: Examples) -> Bool[np.ndarray, " n"]:
    found: np.ndarray = examples.column("optimizer").astype(str) == name
    return found


def _largest_rates(examples: Examples) -> Bool[np.ndarray, " n"]:
    """Rates at or above the upper quartile of the optimizer's."""
    optimizer, rate = examples.column("optimizer").astype(str), examples.column("lr")
    found = np.zeros(len(examples), dtype=bool)
    for name in set(optimizer):
        own = optimizer == name
        found |= own & (rate >= np.quantile(rate[own], 1 - _LARGEST))
    return found


#: Which rows of all sides together are held out.
HELD_OUT: Mapping[str, Callable[[Examples], Bool[np.ndarray, " n"]]] = MappingProxyType(
    {
        **{name: partial(_of_optimizer, name) for name in OPTIMIZERS},
        "largest-rates": _largest_rates,
    }
)


def kinds_there(table: pa.Table) -> list[str]:
    """What can be held out of a zoo: optimizers that it has, if there are several, and rates."""
    optimizers = set(table.column("optimizer").to_pylist())
    return [name for name in HELD_OUT if name not in OPTIMIZERS or {name} < optimizers]


def without(sides: Sequence[Examples], kind: str) -> list[Examples]:
    """Training and validation without runs of a kind, and of the test set only these.

    Raises:
        BenchError: If there is no such kind, or a side has nothing left.
    """
    if kind not in HELD_OUT:
        raise BenchError(f"nothing held out is called {kind!r}; there are {', '.join(HELD_OUT)}")
    held_out = HELD_OUT[kind](Examples.cat(sides))
    ends = np.cumsum([len(side) for side in sides])
    train, validation, test = np.split(held_out, ends[:-1])
    chosen = [
        side.take(mask) for side, mask in zip(sides, (~train, ~validation, test), strict=True)
    ]
    for name, side in zip(("training", "validation", "test"), chosen, strict=True):
        if not len(side):
            raise BenchError(f"without {kind} the {name} set is empty: take a larger zoo")
    return chosen
