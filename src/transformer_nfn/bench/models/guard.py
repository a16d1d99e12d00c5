"""Tell networks that are unlike those a model was trained on."""

from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32, Float64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.features.kinds import FEATURES

_FILE = "guard.safetensors"
#: A range leaves so many training rows out on each side.
_TAIL = 0.005
#: So many validation rows may be called unlike though they are not.
_FALSE_ALARMS = 0.01


class Guard(NamedTuple):
    """The range of each feature in training, and how many may lie outside.

    Attributes:
        features: "invariants" for a model that the group does not move, else "statistics": such a
            model is out of its depth where weights are in other coordinates.
        low: The lower end of each feature's range in training.
        high: The upper end.
        limit: Share of features outside their range above which a network counts as unlike.
    """

    features: Literal["invariants", "statistics"]
    low: Float32[np.ndarray, " f"]
    high: Float32[np.ndarray, " f"]
    limit: float

    @staticmethod
    def fitted(train: Examples, validation: Examples, *, invariant: bool) -> "Guard":
        """The ranges of the training rows, and a limit that nearly all validation rows keep."""
        name: Literal["invariants", "statistics"] = "invariants" if invariant else "statistics"
        low, high = np.quantile(FEATURES[name](train), [_TAIL, 1 - _TAIL], axis=0)
        guard = Guard(name, low.astype(np.float32), high.astype(np.float32), 0.0)
        share = guard.outside(validation)
        return guard._replace(limit=float(np.quantile(share, 1 - _FALSE_ALARMS)))

    def outside(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The share of each network's features that lie outside the training range."""
        values = FEATURES[self.features](examples)
        if values.shape[1] != len(self.low):
            raise BenchError(f"the guard knows {len(self.low)} features, got {values.shape[1]}")
        # A little slack: features that are constant in training have a range of no width.
        slack = 1e-3 * (self.high - self.low) + 1e-6
        inside = (values >= self.low - slack) & (values <= self.high + slack)  # NaN is outside
        share: np.ndarray = 1.0 - inside.mean(axis=1)
        return share

    def save(self, folder: Path) -> None:
        """Write it beside a model."""
        described = {"features": self.features, "limit": repr(self.limit)}
        (folder / _FILE).write_bytes(save({"low": self.low, "high": self.high}, described))

    @staticmethod
    def load(folder: Path, features: Literal["invariants", "statistics"], limit: float) -> "Guard":
        """Read what `save` wrote."""
        try:
            arrays = load_file(folder / _FILE)
            low, high = arrays["low"], arrays["high"]
        # A dtype that numpy does not know is an AttributeError or TypeError of safetensors.
        except (OSError, SafetensorError, KeyError, AttributeError, TypeError) as error:
            raise BenchError(f"{folder / _FILE} cannot be read: {error}") from error
        if low.ndim != 1 or low.shape != high.shape or {low.dtype, high.dtype} != {np.dtype("f4")}:
            raise BenchError(f"{folder / _FILE} does not hold two equal rows of float32")
        return Guard(features, low, high, limit)
