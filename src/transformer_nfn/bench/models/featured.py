"""A predictor from one kind of features, with the readers that all of them have."""

from pathlib import Path

import numpy as np
from jaxtyping import Float32, Float64

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.features.kinds import FEATURES
from transformer_nfn.bench.models.predictor import Step, Watch
from transformer_nfn.bench.models.regression.readers import Readers
from transformer_nfn.bench.models.regression.trees import PRESETS, TreeSettings


class FeaturePredictor:
    """Features of networks, read by boosted trees and a kernel.

    Args:
        features: A name in `FEATURES`.
        seed: Of all that is drawn.
        trees: How the trees are grown.

    Raises:
        BenchError: If there are no such features.
    """

    def __init__(self, features: str, seed: int, trees: TreeSettings = PRESETS["readers"]) -> None:
        if features not in FEATURES:
            raise BenchError(f"no features {features!r}, there are {', '.join(FEATURES)}")
        self.features, self.seed, self._trees = features, seed, trees
        self._readers: Readers | None = None

    @property
    def parameter_count(self) -> int | None:
        """None: the size of trees is no measure beside that of networks."""
        return None

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,  # a fit takes a minute: it starts again
        watch: Watch | None = None,
    ) -> None:
        """Fit both readers; `validation` is what they stop and choose on.

        Raises:
            BenchError: If a library is missing, or a feature is not finite.
        """
        rows, held_out = self._rows(train), self._rows(validation)
        self._readers = Readers.fitted(
            rows, train.target, held_out, validation.target, self.seed, self._trees
        )
        if watch is not None:
            watch(Step(1, 1, kendall_tau(self._readers.predict(held_out), validation.target)))

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The accuracy of each network.

        Raises:
            BenchError: If it was not fitted, or to networks of other sizes.
        """
        if self._readers is None:
            raise BenchError("this predictor is not fitted yet: call fit or load first")
        rows, width = self._rows(examples), self._readers.width
        if rows.shape[1] != width:
            raise BenchError(f"the readers want {width} features, got {rows.shape[1]}")
        return self._readers.predict(rows)

    def save(self, folder: Path) -> None:
        """Write trees and kernel."""
        if self._readers is None:
            raise BenchError("this predictor is not fitted yet: nothing to save")
        self._readers.save(folder, self._metadata())

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; this needs no library.

        Raises:
            BenchError: If a file is damaged or of other features.
        """
        self._readers = Readers.load(folder, self._metadata())

    def _metadata(self) -> dict[str, str]:
        return {"kind": self.features, "seed": str(self.seed)}

    def _rows(self, examples: Examples) -> Float32[np.ndarray, "n f"]:
        rows = FEATURES[self.features](examples)
        if not np.isfinite(rows).all():
            raise BenchError(f"{self.features} of a row are not finite: leave diverged runs out")
        return rows
