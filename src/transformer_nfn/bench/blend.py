"""Two predictors together: the mean of what they say, weighted as validation likes it best."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.predictor import Predictor, Watch

#: Weights of the first that are tried.
_WEIGHTS = np.linspace(0, 1, 11)


class BlendPredictor:
    """The mean of the logits of two predictors.

    Args:
        parts: Both of them, not fitted yet.
    """

    def __init__(self, parts: Sequence[Predictor]) -> None:
        self._first, self._second = parts
        self.weight = 0.5

    @property
    def parameter_count(self) -> int | None:
        """Numbers that the first learned, if that is a measure."""
        return self._first.parameter_count

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Fit both, then choose the weight that gives the highest τ on validation."""
        for name, part in self._parts():
            part.fit(train, validation, state=None if state is None else state / name, watch=watch)
        one, two = (_logit(part.predict(validation)) for _, part in self._parts())
        taus = [kendall_tau(w * one + (1 - w) * two, validation.accuracy) for w in _WEIGHTS]
        # Of weights that are as good the middle one: few rows cannot tell them apart.
        near = [w for w, tau in zip(_WEIGHTS, taus, strict=True) if tau >= max(taus) - 0.002]
        self.weight = float(np.mean(near))

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The blended accuracy of each network."""
        one, two = (_logit(part.predict(examples)) for _, part in self._parts())
        blended: np.ndarray = 1 / (1 + np.exp(-(self.weight * one + (1 - self.weight) * two)))
        return blended

    def save(self, folder: Path) -> None:
        """Write both, each in a folder of its own, and the weight."""
        for name, part in self._parts():
            (folder / name).mkdir(parents=True, exist_ok=True)
            part.save(folder / name)
        (folder / "blend.json").write_text(json.dumps({"weight": self.weight}))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        for name, part in self._parts():
            part.load(folder / name)
        try:
            weight = json.loads((folder / "blend.json").read_text())["weight"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BenchError(f"{folder / 'blend.json'} is not readable: {error}") from None
        if not isinstance(weight, float | int) or not 0 <= weight <= 1:
            raise BenchError(f"{folder / 'blend.json'}: the weight should be from 0 to 1")
        self.weight = float(weight)

    def _parts(self) -> list[tuple[str, Predictor]]:
        return [("first", self._first), ("second", self._second)]


def _logit(accuracy: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    clipped = np.clip(accuracy, 1e-6, 1 - 1e-6)
    logit: np.ndarray = np.log(clipped / (1 - clipped))
    return logit
