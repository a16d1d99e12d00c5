"""What can be asked of a network's weights besides its accuracy: each an answer from 0 to 1."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from jaxtyping import Float64

from transformer_nfn.bench.errors import BenchError

#: Optimizers that scale each step by the size of past gradients.
_ADAPTIVE = ("adam", "rmsprop")
#: Epochs have no upper end: so many are half way to 1.
_HALF = 8.0


class Question(NamedTuple):
    """What is asked, and the answer for each row of a zoo."""

    what: str
    answer: Callable[[pa.Table], Float64[np.ndarray, " n"]]


def _numbers(table: pa.Table, name: str) -> Float64[np.ndarray, " n"]:
    values: np.ndarray = table.column(name).to_numpy().astype(np.float64)
    if np.isnan(values).any():
        raise BenchError(f"rows of this zoo have no {name}: it is not known of networks from files")
    return values


def _gap(table: pa.Table) -> Float64[np.ndarray, " n"]:
    gap = _numbers(table, "train_accuracy") - _numbers(table, "test_accuracy")
    shifted: np.ndarray = (1 + gap) / 2  # from -1..1
    return shifted


def _adaptive(table: pa.Table) -> Float64[np.ndarray, " n"]:
    return np.isin(table.column("optimizer").to_numpy().astype(str), _ADAPTIVE).astype(np.float64)


def _epoch(table: pa.Table) -> Float64[np.ndarray, " n"]:
    epoch = _numbers(table, "epoch")
    return epoch / (epoch + _HALF)


QUESTIONS: Mapping[str, Question] = MappingProxyType(
    {
        "accuracy": Question("test accuracy", lambda table: _numbers(table, "test_accuracy")),
        "gap": Question("accuracy in training, less that on test examples", _gap),
        "calibration": Question(
            "how far confidence is from accuracy", lambda t: _numbers(t, "calibration_error")
        ),
        "noise": Question(
            "accuracy with noise on the inputs", lambda t: _numbers(t, "noisy_accuracy")
        ),
        "optimizer": Question("whether the optimizer was adaptive (Adam, RMSprop)", _adaptive),
        "epoch": Question("how many epochs it was trained", _epoch),
    }
)
