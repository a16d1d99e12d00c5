"""What reads rows of features: boosted trees and a kernel, on the logit of accuracy."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Float64

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.regression.forest import Forest
from transformer_nfn.bench.models.regression.kernel import KernelRegression
from transformer_nfn.bench.models.regression.trees import PRESETS, TreeData, TreeSettings, grow

_LOGIT = 0.005  # accuracies are cut off here before the logit
_TREES, _KERNEL = "trees.safetensors", "kernel.safetensors"


class Readers(NamedTuple):
    """Both readers; a prediction is the mean of their logits."""

    forest: Forest
    kernel: KernelRegression

    @staticmethod
    def fitted(
        rows: Float32[np.ndarray, "n f"],
        accuracy: Float64[np.ndarray, " n"],
        held_out: Float32[np.ndarray, "m f"],
        held_out_accuracy: Float64[np.ndarray, " m"],
        seed: int,
        trees: TreeSettings = PRESETS["readers"],
    ) -> "Readers":
        """Trees stop, and the kernel's width is chosen, on the rows that are held out."""
        data = TreeData(rows, _logit(accuracy), held_out, _logit(held_out_accuracy))
        forest = grow("lightgbm", data, trees, seed)
        return Readers(forest, KernelRegression.fitted(*data))

    @property
    def width(self) -> int:
        """How many features they read."""
        return len(self.kernel.mean)

    def predict(self, rows: Float32[np.ndarray, "n f"]) -> Float64[np.ndarray, " n"]:
        """The accuracy of each row."""
        logit = (self.forest.predict(rows) + self.kernel.predict(rows)) / 2
        predicted: np.ndarray = 1 / (1 + np.exp(-logit))
        return predicted

    def save(self, folder: Path, metadata: dict[str, str]) -> None:
        """Write both, each in a file of its own."""
        self.forest.save(folder / _TREES, {**metadata, "features": str(self.width)})
        self.kernel.save(folder / _KERNEL)

    @staticmethod
    def load(folder: Path, metadata: dict[str, str]) -> "Readers":
        """Read what `save` wrote.

        Raises:
            BenchError: If a file is damaged or of other settings.
        """
        kernel = KernelRegression.load(folder / _KERNEL)
        forest, width = Forest.load(folder / _TREES, metadata)
        if width != len(kernel.mean):
            raise BenchError(f"{folder}: trees read {width} features, the kernel another number")
        return Readers(forest, kernel)


def _logit(accuracy: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    cut = np.clip(accuracy, _LOGIT, 1 - _LOGIT)
    logit: np.ndarray = np.log(cut / (1 - cut))
    return logit
