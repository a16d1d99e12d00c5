"""Boosted trees and random forests: the paper's baselines, and stronger controls."""

from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float32, Float64
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.features.kinds import FEATURES
from transformer_nfn.bench.models.predictor import Step, Watch
from transformer_nfn.bench.models.regression.forest import (
    Forest,
    from_lightgbm,
    from_sklearn,
    from_xgboost,
)

Library = Literal["xgboost", "lightgbm", "forest"]

_FILE = "trees.safetensors"


class TreeSettings(BaseModel):
    """How trees are grown; None is the library's own value."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: PositiveInt = 100  # trees, or at most so many where it stops early
    max_depth: PositiveInt | None = None
    max_leaves: PositiveInt
    #: The least number of rows in a leaf. Squared error has the hessian 1 in every row, so this is
    #: XGBoost's min_child_weight, LightGBM's min_child_samples, scikit-learn's min_samples_leaf.
    min_rows: PositiveInt
    learning_rate: PositiveFloat | None = None
    #: The share of the features that a boosted tree, or a split in a forest, may look at.
    feature_fraction: PositiveFloat | None = None
    row_fraction: PositiveFloat | None = None  # the share of the rows that a boosted tree sees
    #: How many values of a feature boosting tells apart.
    max_bin: PositiveInt | None = None
    early_stopping: PositiveInt | None = None  # rounds without a lower error on validation


#: "appendix": that of the paper, the rest as the libraries have it. With fewer than 100 rows it
#: cannot split: that is how it is. 64 bins instead of 256 make boosting on all weights four times
#: faster; with some thousand rows, a bin still has fewer rows than the smallest leaf.
#: "readers": for some hundred features; slow, and with few of them at a time, since most say the
#: same.
PRESETS = MappingProxyType(
    {
        "appendix": TreeSettings(max_depth=10, max_leaves=256, min_rows=50, max_bin=64),
        "readers": TreeSettings(
            rounds=2000,
            max_leaves=24,
            min_rows=12,
            learning_rate=0.05,
            feature_fraction=0.3,
            row_fraction=0.7,
            early_stopping=100,
        ),
    }
)

#: The share of the features at a split of a forest where the settings have none: all, as
#: scikit-learn has it for regression, but fewer of thousands of weights, where a fit with all takes
#: half an hour.
FOREST_FEATURES, FEW = 0.05, 1000


class TreePredictor:
    """Predicts accuracy with trees, from one kind of features. One thread, deterministic.

    Args:
        library: XGBoost, LightGBM or scikit-learn's random forest.
        features: A name in `FEATURES`.
        settings: How the trees are grown, or a name in `PRESETS`.
        seed: Of all that is drawn.

    Raises:
        BenchError: If a name is unknown, or a forest shall stop early or learn at a rate.
    """

    def __init__(
        self, library: Library, features: str, settings: TreeSettings | str, seed: int
    ) -> None:
        if library not in get_args(Library):
            raise BenchError(f"no library {library!r}, there are {', '.join(get_args(Library))}")
        if features not in FEATURES:
            raise BenchError(f"no features {features!r}, there are {', '.join(FEATURES)}")
        if isinstance(settings, str):
            if settings not in PRESETS:
                raise BenchError(f"no preset {settings!r}, there are {', '.join(PRESETS)}")
            settings = PRESETS[settings]
        boosting = (settings.learning_rate, settings.row_fraction, settings.early_stopping)
        if library == "forest" and any(value is not None for value in boosting):
            raise BenchError("learning rate, row fraction and early stopping are for boosting")
        self.library, self.features, self.settings, self.seed = library, features, settings, seed
        self._forest: Forest | None = None
        self._width = 0

    @property
    def parameter_count(self) -> int | None:
        """None: the size of trees is no measure beside that of networks."""
        return None

    @property
    def trees(self) -> int:
        """How many trees it has; 0 before `fit`."""
        return 0 if self._forest is None else len(self._forest.starts)

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,  # a fit takes minutes: it starts again
        watch: Watch | None = None,
    ) -> None:
        """Grow the trees on `train`; `validation` is for early stopping.

        Raises:
            BenchError: If the library is missing, or a feature is not finite.
        """
        rows, held_out = self._rows(train), self._rows(validation)
        data = TreeData(rows, train.target, held_out, validation.target)
        self._forest, self._width = (
            grow(self.library, data, self.settings, self.seed),
            rows.shape[1],
        )
        if watch is not None:
            tau = kendall_tau(self._forest.predict(held_out), validation.target)
            watch(Step(self.trees, self.trees, tau))

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The accuracy of each row.

        Raises:
            BenchError: If it was not fitted, or to networks of other sizes.
        """
        if self._forest is None:
            raise BenchError("the trees are not grown yet: fit or load first")
        rows = self._rows(examples)
        if rows.shape[1] != self._width:
            raise BenchError(f"the trees want {self._width} features, got {rows.shape[1]}")
        return self._forest.predict(rows)

    def save(self, folder: Path) -> None:
        """Write the trees' arrays, whatever library grew them."""
        if self._forest is None:
            raise BenchError("the trees are not grown yet: nothing to save")
        self._forest.save(folder / _FILE, {**self._metadata(), "features": str(self._width)})

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; this needs no library.

        Raises:
            BenchError: If the file is damaged or of other settings.
        """
        self._forest, self._width = Forest.load(folder / _FILE, self._metadata())

    def _metadata(self) -> dict[str, str]:
        return {
            "library": self.library,
            "kind": self.features,
            "settings": self.settings.model_dump_json(),
            "seed": str(self.seed),
        }

    def _rows(self, examples: Examples) -> Float32[np.ndarray, "n f"]:
        rows = FEATURES[self.features](examples)
        if not np.isfinite(rows).all():
            raise BenchError(f"{self.features} of a row are not finite: leave diverged runs out")
        return rows


class TreeData(NamedTuple):
    """What trees are grown on, and what is held out to stop early."""

    rows: Float32[np.ndarray, "n f"]
    target: Float64[np.ndarray, " n"]
    held_out: Float32[np.ndarray, "m f"]
    held_out_target: Float64[np.ndarray, " m"]


def grow(library: Library, data: TreeData, settings: TreeSettings, seed: int) -> Forest:
    """Grow trees, and keep them as arrays.

    Raises:
        BenchError: If the library is missing, or its trees are not what it says of them.
    """
    fit = {"xgboost": _xgboost, "lightgbm": _lightgbm, "forest": _random_forest}[library]
    try:
        forest, predicted = fit(data, settings, seed)
    except ImportError as error:
        raise BenchError(
            f"{library} needs {error.name}: pip install 'transformer-nfn[bench]'"
        ) from error
    forest.check(data.rows.shape[1])
    # Whether the arrays say what the library says; a new version may write other text.
    worst = np.abs(forest.predict(data.rows) - predicted).max(initial=0.0)
    if not worst < 1e-4:
        raise BenchError(f"{library} predicts its trees differently, by {worst}")
    return forest


def _given(**parameters: float | int | None) -> dict[str, float | int]:
    """Only what is set: the rest is the library's own."""
    return {name: value for name, value in parameters.items() if value is not None}


#: What each library gives: its trees, and what it predicts itself for the training rows.
_Fitted = tuple[Forest, np.ndarray]


def _xgboost(data: TreeData, settings: TreeSettings, seed: int) -> _Fitted:
    import xgboost

    parameters: dict[str, Any] = {
        "objective": "reg:squarederror",
        "tree_method": "hist",
        "max_leaves": settings.max_leaves,
        "min_child_weight": settings.min_rows,
        "nthread": 1,
        "seed": seed,
        "verbosity": 0,
        **_given(
            max_depth=settings.max_depth,
            eta=settings.learning_rate,
            colsample_bytree=settings.feature_fraction,
            subsample=settings.row_fraction,
            max_bin=settings.max_bin,
        ),
    }
    matrix = xgboost.DMatrix(data.rows, data.target, nthread=1)
    stop, watched = settings.early_stopping, []
    if stop:
        held_out = xgboost.DMatrix(data.held_out, data.held_out_target, nthread=1)
        watched = [(held_out, "validation")]
    booster = xgboost.train(
        parameters,
        matrix,
        settings.rounds,
        evals=watched,
        early_stopping_rounds=stop,
        verbose_eval=False,
    )
    rounds = booster.best_iteration + 1 if stop else settings.rounds
    predicted = booster.predict(matrix, iteration_range=(0, rounds))
    return from_xgboost(bytes(booster.save_raw("json")), rounds), predicted


def _lightgbm(data: TreeData, settings: TreeSettings, seed: int) -> _Fitted:
    import lightgbm

    parameters: dict[str, Any] = {
        "objective": "regression",
        "num_leaves": settings.max_leaves,
        "min_child_samples": settings.min_rows,
        "bagging_freq": 0 if settings.row_fraction is None else 1,
        "num_threads": 1,
        "seed": seed,
        "deterministic": True,
        "force_col_wise": True,  # else it measures which is faster
        # It keeps 256 numbers of each feature for each leaf: 20 GB for all weights and 256 leaves.
        "histogram_pool_size": 1024,  # MB
        "verbosity": -1,
        **_given(
            max_depth=settings.max_depth,
            learning_rate=settings.learning_rate,
            feature_fraction=settings.feature_fraction,
            bagging_fraction=settings.row_fraction,
            max_bin=settings.max_bin,
        ),
    }
    dataset = lightgbm.Dataset(data.rows, data.target, params=parameters)
    stop = settings.early_stopping
    booster = lightgbm.train(
        parameters,
        dataset,
        settings.rounds,
        valid_sets=[dataset.create_valid(data.held_out, data.held_out_target)] if stop else None,
        callbacks=[lightgbm.early_stopping(stop, verbose=False)] if stop else None,
    )
    # Both stop at the best round.
    return from_lightgbm(booster.model_to_string()), np.asarray(booster.predict(data.rows))


def _random_forest(data: TreeData, settings: TreeSettings, seed: int) -> _Fitted:
    from sklearn.ensemble import RandomForestRegressor  # type: ignore[import-untyped]

    usual = 1.0 if data.rows.shape[1] <= FEW else FOREST_FEATURES
    grown = RandomForestRegressor(
        n_estimators=settings.rounds,
        max_depth=settings.max_depth,
        max_leaf_nodes=settings.max_leaves,
        min_samples_leaf=settings.min_rows,
        max_features=settings.feature_fraction or usual,
        n_jobs=1,
        random_state=seed,
    ).fit(data.rows, data.target)
    return from_sklearn([tree.tree_ for tree in grown.estimators_]), grown.predict(data.rows)
