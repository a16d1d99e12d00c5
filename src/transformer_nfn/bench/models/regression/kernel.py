"""Regression with a Gaussian kernel: smooth where trees have steps, and of few lines."""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from jaxtyping import Float, Float32, Float64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.kendall import kendall_tau

#: Inverse squared widths, by the number of features, and ridges that are tried on validation.
_WIDTHS = (0.03, 0.1, 0.3, 1.0)
_RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
#: Features are cut off at so many deviations: what is beyond is no better known.
_FARTHEST = 4.0
_LARGEST = 500_000_000  # bytes of a file that is read


@dataclass(frozen=True, eq=False)
class KernelRegression:
    """Ridge regression with a Gaussian kernel on standardised features.

    Attributes:
        mean: Of the features, after `_squashed`.
        deviation: Of the same.
        rows: The standardised training rows, in float32: nearly all of a saved model are these.
        weights: Of each of them.
        figures: The offset, and the inverse squared width divided by the number of features.
    """

    mean: Float64[np.ndarray, " f"]
    deviation: Float64[np.ndarray, " f"]
    rows: Float32[np.ndarray, "n f"]
    weights: Float64[np.ndarray, " n"]
    figures: Float64[np.ndarray, " 2"]

    @staticmethod
    def fitted(
        rows: Float[np.ndarray, "n f"],
        target: Float64[np.ndarray, " n"],
        held_out: Float[np.ndarray, "m f"],
        held_out_target: Float64[np.ndarray, " m"],
    ) -> "KernelRegression":
        """Width and ridge are those with the highest τ on the rows that are held out."""
        squashed = _squashed(rows)
        mean, deviation = squashed.mean(0), squashed.std(0) + 1e-6
        known, asked = (_standardised(each, mean, deviation) for each in (rows, held_out))
        kept = known.astype(np.float32)
        known = kept.astype(np.float64)
        offset = float(target.mean())
        between, across = _squared_distances(known, known), _squared_distances(asked, known)
        best, chosen = -2.0, (np.zeros(len(rows)), 0.0)
        for width in _WIDTHS:
            scale = width / rows.shape[1]
            values, vectors = np.linalg.eigh(np.exp(-scale * between))
            turned, kernel = vectors.T @ (target - offset), np.exp(-scale * across)
            for ridge in _RIDGES:
                weights = vectors @ (turned / (values + ridge))
                tau = kendall_tau(kernel @ weights, held_out_target)
                if tau > best:
                    best, chosen = tau, (weights, scale)
        return KernelRegression(mean, deviation, kept, chosen[0], np.array([offset, chosen[1]]))

    def predict(self, rows: Float[np.ndarray, "n f"]) -> Float64[np.ndarray, " n"]:
        """The target of each row.

        Raises:
            BenchError: If they have another number of features.
        """
        if rows.shape[1] != len(self.mean):
            raise BenchError(f"the kernel wants {len(self.mean)} features, got {rows.shape[1]}")
        asked = _standardised(rows, self.mean, self.deviation)
        kernel = np.exp(-self.figures[1] * _squared_distances(asked, self.rows.astype(np.float64)))
        predicted: np.ndarray = kernel @ self.weights + self.figures[0]
        return predicted

    def save(self, path: Path) -> None:
        """Write all arrays into one file."""
        arrays = {f.name: np.ascontiguousarray(getattr(self, f.name)) for f in fields(self)}
        path.write_bytes(save(arrays))

    @staticmethod
    def load(path: Path) -> "KernelRegression":
        """Read what `save` wrote.

        Raises:
            BenchError: If the file is something else.
        """
        try:
            if path.stat().st_size > _LARGEST:
                raise BenchError(f"{path} has more than {_LARGEST:,} bytes")
            arrays = load_file(path)
        # A dtype that numpy does not know is an AttributeError or TypeError of safetensors.
        except (OSError, SafetensorError, AttributeError, TypeError) as error:
            raise BenchError(f"{path} is not readable: {error}") from None
        if set(arrays) != {f.name for f in fields(KernelRegression)}:
            raise BenchError(f"{path} is no kernel regression: it has {sorted(arrays)}")
        count, width = arrays["weights"].size, arrays["mean"].size
        shapes = {
            "mean": (width,),
            "deviation": (width,),
            "rows": (count, width),
            "weights": (count,),
            "figures": (2,),
        }
        for name, shape in shapes.items():
            array = arrays[name]
            dtype = np.dtype(np.float32 if name == "rows" else np.float64)
            if array.shape != shape or array.dtype != dtype or not np.isfinite(array).all():
                raise BenchError(f"{path}: {name} should be {shape}, finite, in {dtype}")
        return KernelRegression(**arrays)


def _squashed(rows: Float[np.ndarray, "n f"]) -> Float64[np.ndarray, "n f"]:
    """Signed logarithms: norms and leads of networks range over orders of magnitude."""
    wide = rows.astype(np.float64)
    squashed: np.ndarray = np.sign(wide) * np.log1p(100 * np.abs(wide))
    return squashed


def _standardised(
    rows: Float[np.ndarray, "n f"],
    mean: Float64[np.ndarray, " f"],
    deviation: Float64[np.ndarray, " f"],
) -> Float64[np.ndarray, "n f"]:
    cut: np.ndarray = np.clip((_squashed(rows) - mean) / deviation, -_FARTHEST, _FARTHEST)
    return cut


def _squared_distances(
    left: Float64[np.ndarray, "n f"], right: Float64[np.ndarray, "m f"]
) -> Float64[np.ndarray, "n m"]:
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1) - 2 * left @ right.T
    distances: np.ndarray = np.maximum(squares, 0)
    return distances
