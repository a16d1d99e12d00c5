from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.stats import kendalltau

from tests.bench.small import SHAPE, WORD_VECTORS, small_examples, three_parts
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.predictor import Predictor, Step
from transformer_nfn.bench.models.regression import forest as forest_module
from transformer_nfn.bench.models.regression.forest import from_sklearn
from transformer_nfn.bench.models.regression.trees import (
    PRESETS,
    Library,
    TreeData,
    TreePredictor,
    TreeSettings,
    grow,
)
from transformer_nfn.jobs import no_subnormals

pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")

QUICK = TreeSettings(rounds=30, max_leaves=8, min_rows=5, feature_fraction=0.5)
STOPPING = PRESETS["readers"].model_copy(update={"rounds": 60, "early_stopping": 10})
CASES: list[tuple[Library, str, TreeSettings | str]] = [
    ("lightgbm", "statistics", STOPPING),
    ("lightgbm", "hyperparameters", "appendix"),
    ("lightgbm", "weights", QUICK),
    ("xgboost", "invariants", STOPPING),
    ("xgboost", "statistics", "appendix"),
    ("forest", "statistics", QUICK),
    ("forest", "invariants", "appendix"),
]


@pytest.fixture(scope="module")
def parts() -> tuple[Examples, Examples, Examples]:
    return three_parts(small_examples(80))


def fitted(case: tuple[Library, str, TreeSettings | str], parts: tuple[Examples, ...]):
    predictor = TreePredictor(*case, seed=3)
    predictor.fit(parts[0], parts[1])
    return predictor


@pytest.mark.parametrize("case", CASES)
def test_learns_says_nothing_and_comes_back_from_its_file(
    case: tuple[Library, str, TreeSettings | str],
    parts: tuple[Examples, Examples, Examples],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    train, validation, test = parts
    predictor, steps = TreePredictor(*case, seed=3), list[Step]()
    assert isinstance(predictor, Predictor)
    assert predictor.parameter_count is None
    predictor.fit(train, validation, watch=steps.append)
    predicted = predictor.predict(test)
    assert predicted.dtype == np.float64
    # All weights, one by one, say little of their scale.
    assert kendalltau(predicted, test.accuracy).statistic > (0.1 if case[1] == "weights" else 0.5)
    [step] = steps
    assert step.done == step.total == predictor.trees > 0
    expected = kendalltau(predictor.predict(validation), validation.accuracy).statistic
    assert step.validation_tau == pytest.approx(expected)
    predictor.save(tmp_path)
    again = TreePredictor(*case, seed=3)
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict(test), predicted)
    assert capfd.readouterr() == ("", "")
    assert [path.name for path in tmp_path.iterdir()] == ["trees.safetensors"]


# The paper's boosting draws nothing, so its seed does nothing.
@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[5]])
def test_the_same_seed_gives_the_same_trees(
    case: tuple[Library, str, TreeSettings | str], parts: tuple[Examples, Examples, Examples]
) -> None:
    first, second = (fitted(case, parts).predict(parts[2]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = TreePredictor(*case, seed=4)
    other.fit(parts[0], parts[1])
    assert (other.predict(parts[2]) != first).any()


def test_stops_early_on_validation(parts: tuple[Examples, Examples, Examples]) -> None:
    train, validation, _ = parts
    eager = STOPPING.model_copy(update={"early_stopping": 3, "learning_rate": 0.5})
    for library in ("lightgbm", "xgboost"):
        predictor = TreePredictor(library, "statistics", eager, seed=0)
        predictor.fit(train, validation)
        assert 0 < predictor.trees < 60


def test_too_few_rows_for_the_paper_give_a_constant() -> None:
    train, validation, test = three_parts(small_examples(20))
    for library in ("lightgbm", "xgboost", "forest"):
        predictor, steps = TreePredictor(library, "statistics", "appendix", seed=0), list[Step]()
        predictor.fit(train, validation, watch=steps.append)
        assert np.ptp(predictor.predict(test)) < 1e-12
        assert steps[0].validation_tau == 0.0


def test_arrays_predict_as_sklearn_does() -> None:
    from sklearn.ensemble import RandomForestRegressor

    random = np.random.default_rng(0)
    rows = random.normal(size=(300, 7)).astype(np.float32)
    grown = RandomForestRegressor(20, random_state=0).fit(rows, rows[:, 0] * rows[:, 1])
    ours = from_sklearn([tree.tree_ for tree in grown.estimators_])
    ours.check(7)
    fresh = random.normal(size=(500, 7)).astype(np.float32)
    np.testing.assert_allclose(ours.predict(fresh), grown.predict(fresh), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(ours.predict(fresh[:0]), np.empty(0))


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_arrays_split_as_the_library_does_on_ties(library: str) -> None:
    """Hyperparameters have few values, and thresholds may be equal to one."""
    random = np.random.default_rng(0)
    rows = random.integers(-2, 3, size=(400, 3)).astype(np.float32)
    target = rows[:, 0] * rows[:, 1] + rows[:, 2] + random.normal(0, 0.1, 400)
    from transformer_nfn.bench.models.regression import trees

    fit = {"lightgbm": trees._lightgbm, "xgboost": trees._xgboost}[library]
    grown, predicted = fit(trees.TreeData(rows, target, rows, target), QUICK, 0)
    np.testing.assert_allclose(grown.predict(rows), predicted, rtol=0, atol=1e-5)
    assert np.ptp(predicted) > 1


def damaged(
    name: str, arrays: dict[str, np.ndarray], metadata: dict[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    arrays = {key: array.copy() for key, array in arrays.items()}
    inner, leaf = np.flatnonzero(arrays["left"] >= 0), np.flatnonzero(arrays["left"] < 0)
    match name:
        case "a circle":
            arrays["left"][inner[1]] = inner[0]
        case "its own child":
            arrays["right"][inner[1]] = inner[1]
        case "a child beyond the end":
            arrays["right"][inner[0]] = len(arrays["left"])
        case "a child in another tree":
            arrays["left"][inner[0]] = arrays["starts"][1]
        case "a negative child":
            arrays["left"][inner[0]] = -7
        case "one child":
            arrays["right"][leaf[0]] = len(arrays["left"]) - 1
        case "a feature beyond the end":
            arrays["feature"][inner[0]] = int(metadata["features"])
        case "a negative feature":
            arrays["feature"][leaf[0]] = -1
        case "not a number":
            arrays["value"][leaf[0]] = np.nan
        case "roots out of order":
            arrays["starts"][1:] = arrays["starts"][:0:-1].copy()
        case "a root beyond the end":
            arrays["starts"][-1] = len(arrays["left"])
        case "no trees":
            arrays["starts"] = arrays["starts"][:0]
        case "an array missing":
            del arrays["threshold"]
        case "a shorter array":
            arrays["feature"] = arrays["feature"][:-1]
        case "another dtype":
            arrays["left"] = arrays["left"].astype(np.int32)
        case "another shape":
            arrays["value"] = arrays["value"][:, None]
        case "no number of features":
            metadata = {key: value for key, value in metadata.items() if key != "features"}
        case "another format":
            metadata = {**metadata, "format": "other"}
        case "another library":
            metadata = {**metadata, "library": "lightgbm"}
        case "other settings":
            metadata = {**metadata, "settings": PRESETS["readers"].model_dump_json()}
        case _:
            raise AssertionError(name)
    return arrays, metadata


DAMAGES = [
    "a circle",
    "its own child",
    "a child beyond the end",
    "a child in another tree",
    "a negative child",
    "one child",
    "a feature beyond the end",
    "a negative feature",
    "not a number",
    "roots out of order",
    "a root beyond the end",
    "no trees",
    "an array missing",
    "a shorter array",
    "another dtype",
    "another shape",
    "no number of features",
    "another format",
    "another library",
    "other settings",
]


def metadata_of(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata())


@pytest.fixture(scope="module")
def saved(parts: tuple[Examples, Examples, Examples], tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("trees")
    fitted(("forest", "statistics", QUICK), parts).save(folder)
    return folder / "trees.safetensors"


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_refused(name: str, saved: Path, tmp_path: Path) -> None:
    arrays, metadata = damaged(name, load_file(saved), metadata_of(saved))
    save_file(
        {key: np.ascontiguousarray(array) for key, array in arrays.items()},
        tmp_path / saved.name,
        metadata,
    )
    with pytest.raises(BenchError, match=r"trees\.safetensors"):
        TreePredictor("forest", "statistics", QUICK, seed=3).load(tmp_path)


def test_the_undamaged_file_is_taken(saved: Path, tmp_path: Path) -> None:
    save_file(load_file(saved), tmp_path / saved.name, metadata_of(saved))
    TreePredictor("forest", "statistics", QUICK, seed=3).load(tmp_path)


def test_no_file_half_a_file_and_a_large_file_are_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = TreePredictor("forest", "statistics", QUICK, seed=3)
    with pytest.raises(BenchError, match="is no safetensors file"):
        predictor.load(tmp_path)
    (tmp_path / saved.name).write_bytes(saved.read_bytes()[:-100])
    with pytest.raises(BenchError, match="is no safetensors file"):
        predictor.load(tmp_path)
    monkeypatch.setattr(forest_module, "LARGEST", 1000)
    with pytest.raises(BenchError, match="more than 1000 bytes"):
        predictor.load(saved.parent)


def test_networks_of_other_sizes_are_refused(saved: Path) -> None:
    predictor = TreePredictor("forest", "statistics", QUICK, seed=3)
    with pytest.raises(BenchError, match="fit or load"):
        predictor.predict(small_examples(1))
    predictor.load(saved.parent)
    with pytest.raises(BenchError, match="want 154 features, got 140"):
        predictor.predict(small_examples(1, shape=WORD_VECTORS))


def test_weights_that_are_not_finite_are_refused(
    parts: tuple[Examples, Examples, Examples],
) -> None:
    train, validation, _ = parts
    broken = Examples(train.table, torch.full_like(train.weights, torch.nan), SHAPE)
    with pytest.raises(BenchError, match="not finite"):
        TreePredictor("lightgbm", "weights", "appendix", seed=0).fit(broken, validation)


def test_a_library_whose_trees_are_read_wrongly_is_noticed(
    parts: tuple[Examples, Examples, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_nfn.bench.models.regression import trees

    monkeypatch.setattr(
        trees,
        "from_lightgbm",
        lambda text: forest_module.from_lightgbm(
            text.replace("\nleaf_value=0.", "\nleaf_value=0.9")
        ),
    )
    with pytest.raises(BenchError, match="predicts its trees differently"):
        fitted(("lightgbm", "statistics", QUICK), parts)


def test_a_missing_library_says_how_to_get_it(
    parts: tuple[Examples, Examples, Examples], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xgboost", None)
    with pytest.raises(BenchError, match=r"pip install 'transformer-nfn\[bench\]'"):
        fitted(("xgboost", "statistics", QUICK), parts)


def test_what_does_not_exist_is_refused() -> None:
    for arguments, message in (
        (("lightgbm", "spectra", "appendix"), "no features 'spectra'"),
        (("lightgbm", "weights", "best"), "no preset 'best'"),
        (("forest", "weights", "readers"), "are for boosting"),
    ):
        with pytest.raises(BenchError, match=message):
            TreePredictor(*arguments, seed=0)


def test_a_threshold_of_zero_is_kept_where_subnormal_numbers_are_zero() -> None:
    rows = np.repeat(np.array([[-1.0], [0.0]], dtype=np.float32), 20, axis=0)
    target = rows[:, 0].astype(np.float64)
    settings = TreeSettings(rounds=1, max_leaves=2, min_rows=1, learning_rate=1.0)
    with no_subnormals():
        forest = grow("xgboost", TreeData(rows, target, rows, target), settings, seed=0)
        low, high = forest.predict(rows)[[0, -1]]
    assert low < -0.9
    assert high > -0.1
