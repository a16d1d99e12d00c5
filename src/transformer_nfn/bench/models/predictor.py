"""The one interface of all models of the benchmark."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64

from transformer_nfn.bench.examples import Examples


class Step(NamedTuple):
    """How far a fit is: shown while it runs."""

    done: int
    total: int
    validation_tau: float


#: Is told after each epoch.
Watch = Callable[[Step], None]


@runtime_checkable
class Predictor(Protocol):
    """Predicts the accuracy of networks from their rows; fitted once."""

    @property
    def parameter_count(self) -> int | None:
        """Numbers it learned; None where that is no measure, as for trees."""

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Learn from `train`, choose on `validation`.

        Args:
            train: The rows to learn from.
            validation: The rows to choose an epoch or a number of trees on.
            state: A folder in which a fit that is interrupted leaves what it needs to go on.
            watch: Is told how far it is.
        """

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """A number for each row; larger means more accurate."""

    def save(self, folder: Path) -> None:
        """Write what `load` needs: safetensors, JSON or a library's own text, never a pickle."""

    def load(self, folder: Path) -> None:
        """Read what `save` wrote into a predictor made with the same settings."""
