"""Regression trees as arrays: kept without a pickle, predicted without the library that grew them.

A file of trees comes from outside. The libraries' own readers trust their files, so none is used:
whatever grew the trees, they are kept in the same few arrays, which are checked when read.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from transformer_nfn.bench.errors import BenchError

#: The value of "format" in the metadata; another number is another layout.
FORMAT = "transformer-nfn/trees/1"
#: Most bytes of a file that is read; 100 trees of 256 leaves take 2.5 MB.
LARGEST = 200_000_000

_SIDES = ("left", "right")
_AT_ONCE = 1 << 20  # rows × trees that are walked together


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees one after the other, node by node; the prediction is the sum of one leaf of each.

    Attributes:
        left: The child where the feature is at most the threshold, by its place in all nodes; -1
            at a leaf.
        right: The other child; -1 at a leaf.
        feature: Which feature an inner node looks at; 0 at a leaf.
        threshold: What it is compared with; 0 at a leaf.
        value: What a leaf adds to the prediction; 0 at an inner node.
        starts: The root of each tree.
    """

    left: Int64[np.ndarray, " nodes"]
    right: Int64[np.ndarray, " nodes"]
    feature: Int64[np.ndarray, " nodes"]
    threshold: Float64[np.ndarray, " nodes"]
    value: Float64[np.ndarray, " nodes"]
    starts: Int64[np.ndarray, " trees"]

    def predict(self, rows: Float32[np.ndarray, "n f"]) -> Float64[np.ndarray, " n"]:
        """The sum over the trees of the leaf that a row ends in."""
        step = max(1, _AT_ONCE // len(self.starts))
        parts = [self._walk(rows[first : first + step]) for first in range(0, len(rows), step)]
        return np.concatenate([np.empty(0), *parts])

    def _walk(self, rows: Float32[np.ndarray, "n f"]) -> Float64[np.ndarray, " n"]:
        node = np.tile(self.starts, (len(rows), 1))  # n trees
        row = np.arange(len(rows))[:, None]
        while (inner := self.left[node] >= 0).any():
            low = rows[row, self.feature[node]] <= self.threshold[node]
            node = np.where(inner, np.where(low, self.left[node], self.right[node]), node)
        total: np.ndarray = self.value[node].sum(axis=1)
        return total

    def check(self, features: int) -> None:
        """Make sure that every row of so many features ends in a leaf of each tree.

        Raises:
            BenchError: If not.
        """
        nodes = len(self.left)
        ends = np.append(self.starts[1:], nodes)
        if not len(self.starts) or self.starts[0] != 0 or (ends <= self.starts).any():
            raise BenchError("the roots of the trees are not in order")
        end = np.repeat(ends, ends - self.starts)  # of each node's tree
        leaf = self.left == -1
        if (leaf != (self.right == -1)).any():
            raise BenchError("a node has one child")
        place = np.arange(nodes)
        for child in (self.left, self.right):
            # Children stand behind their parents, so that there is no way round in circles.
            if not (leaf | ((child > place) & (child < end))).all():
                raise BenchError("a node has a child before itself or in another tree")
        if not ((self.feature >= 0) & (self.feature < features)).all():
            raise BenchError(f"a node looks at a feature beyond the {features} there are")
        if not (np.isfinite(self.threshold) & np.isfinite(self.value)).all():
            raise BenchError("a threshold or value is not finite")

    def save(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Write one safetensors file, under a temporary name first."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        making = path.with_name(f".{path.name}.{os.getpid()}")
        making.write_bytes(save(arrays, {"format": FORMAT, **metadata}))
        os.replace(making, path)

    @staticmethod
    def load(path: Path, metadata: Mapping[str, str]) -> tuple["Forest", int]:
        """Read what `save` wrote, and how many features the trees want.

        Args:
            path: The file.
            metadata: What it must say of itself, beside the number of "features".

        Raises:
            BenchError: If it is no such file, or prediction with it would go astray.
        """
        try:
            if path.stat().st_size > LARGEST:
                raise BenchError(f"{path} has more than {LARGEST} bytes")
            with safe_open(path, framework="numpy") as file:
                said = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # A dtype that numpy does not know is an AttributeError or TypeError of safetensors.
        except (SafetensorError, OSError, AttributeError, TypeError) as error:
            raise BenchError(f"{path} is no safetensors file of trees: {error}") from error
        for name, expected in {"format": FORMAT, **metadata}.items():
            if said.get(name) != expected:
                raise BenchError(f"{path} has {name} {said.get(name)}, expected {expected}")
        try:
            features = int(said.get("features", ""))
            forest = _from_arrays(arrays)
            forest.check(features)
        except ValueError as error:
            raise BenchError(f"{path} is damaged: {error}") from error
        return forest, features


def from_sklearn(trees: Sequence[Any]) -> Forest:
    """The mean of scikit-learn's fitted trees, each a ``DecisionTreeRegressor.tree_``."""

    def tables() -> Iterator[dict[str, np.ndarray]]:
        for tree in trees:
            yield {
                "left": tree.children_left,
                "right": tree.children_right,
                "feature": tree.feature,
                "threshold": tree.threshold,
                "value": tree.value.reshape(-1) / len(trees),
            }

    return _joined(tables())


def from_lightgbm(text: str) -> Forest:
    """The trees of LightGBM's model text, of numbers without missing ones."""

    def tables() -> Iterator[dict[str, np.ndarray]]:
        for part in text.split("\nend of trees", 1)[0].split("\nTree=")[1:]:
            lines = dict(line.split("=", 1) for line in part.split("\n")[1:] if "=" in line)
            value = _numbers(lines["leaf_value"], float)
            inner, none = len(value) - 1, np.full(len(value), -1)
            # Inner nodes are 0, 1, …, leaves -1, -2, …; here leaves come after the inner nodes.
            left, right = (
                np.where(children < 0, inner + ~children, children)
                for children in (_numbers(lines[f"{side}_child"], int) for side in _SIDES)
            )
            yield {
                "left": np.append(left, none),
                "right": np.append(right, none),
                "feature": np.append(_numbers(lines["split_feature"], int), none),
                "threshold": np.append(_numbers(lines["threshold"], float), none),
                "value": np.append(np.zeros(inner), value),
            }

    return _joined(tables())


def from_xgboost(text: bytes, rounds: int) -> Forest:
    """The first trees of XGBoost's model JSON, and its start value as a tree of one leaf."""
    learner = json.loads(text)["learner"]
    start = float(learner["learner_model_param"]["base_score"].strip("[]"))

    def tables() -> Iterator[dict[str, np.ndarray]]:
        leaf = dict.fromkeys(("left", "right", "feature", "threshold"), np.full(1, -1))
        yield {**leaf, "value": np.full(1, start)}
        for tree in learner["gradient_booster"]["model"]["trees"][:rounds]:
            condition = np.array(tree["split_conditions"], dtype=np.float32)
            yield {
                "left": np.array(tree["left_children"]),
                "right": np.array(tree["right_children"]),
                "feature": np.array(tree["split_indices"]),
                "threshold": _before(condition),
                "value": condition,  # of a leaf
            }

    return _joined(tables())


def _before(condition: Float32[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """XGBoost goes left where x < t, in float32: where x ≤ the number before t.

    In float64, and before 0 a number that is not subnormal: those are zero in a fit.
    """
    wide = condition.astype(np.float64)
    before: np.ndarray = np.where(
        wide == 0, -np.finfo(np.float64).tiny, np.nextafter(wide, -np.inf)
    )
    return before


def _numbers(text: str, kind: type[int] | type[float]) -> np.ndarray:
    return np.array([kind(number) for number in text.split()], dtype=kind)


def _joined(tables: Iterator[dict[str, np.ndarray]]) -> Forest:
    """Trees whose children are counted within each tree, one after the other."""
    columns: dict[str, list[np.ndarray]] = {field.name: [] for field in fields(Forest)}
    start = 0
    for table in tables:
        leaf = table["left"] < 0
        columns["starts"].append(np.array([start]))
        for side in _SIDES:
            columns[side].append(np.where(leaf, -1, table[side] + start))
        columns["feature"].append(np.where(leaf, 0, table["feature"]))
        columns["threshold"].append(np.where(leaf, 0.0, table["threshold"]))
        columns["value"].append(np.where(leaf, table["value"], 0.0))
        start += len(leaf)
    kinds = {name: np.float64 if name in ("threshold", "value") else np.int64 for name in columns}
    return Forest(**{name: np.concatenate(c).astype(kinds[name]) for name, c in columns.items()})


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> Forest:
    nodes = arrays["left"].size if "left" in arrays else 0
    for field in fields(Forest):
        if field.name not in arrays:
            raise BenchError(f"it has no {field.name}")
        array = arrays[field.name]
        kind = np.float64 if field.name in ("threshold", "value") else np.int64
        fits = field.name == "starts" or array.size == nodes
        if array.dtype != kind or array.ndim != 1 or not fits:
            raise BenchError(f"{field.name} is {array.dtype} of shape {array.shape}")
    return Forest(**{field.name: arrays[field.name] for field in fields(Forest)})
