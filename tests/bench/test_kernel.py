from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from transformer_nfn.bench import kendall_tau
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.regression.kernel import KernelRegression


def made_up(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(seed).normal(size=(count, 5))
    return rows, np.sin(rows[:, 0]) + rows[:, 1] * rows[:, 2] + 3


def fitted() -> KernelRegression:
    return KernelRegression.fitted(*made_up(300, 0), *made_up(60, 1))


def test_it_learns_a_smooth_function() -> None:
    rows, target = made_up(200, 2)
    predicted = fitted().predict(rows)
    assert kendall_tau(predicted, target) > 0.75
    assert abs(predicted.mean() - target.mean()) < 0.3


def test_a_constant_feature_and_one_far_away_do_no_harm() -> None:
    rows, target = made_up(300, 0)
    constant = np.column_stack([rows, np.full(300, 7.0)])
    m = KernelRegression.fitted(constant, target, constant[:50], target[:50])
    far = constant[:3].copy()
    far[0, 0] = 1e30
    assert np.isfinite(m.predict(far)).all()


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    m, (rows, _) = fitted(), made_up(20, 3)
    path = tmp_path / "k.safetensors"
    m.save(path)
    np.testing.assert_array_equal(KernelRegression.load(path).predict(rows), m.predict(rows))
    with pytest.raises(BenchError, match="wants 5 features, got 4"):
        m.predict(rows[:, :4])


@pytest.mark.parametrize("damage", ["missing", "shape", "nan", "dtype", "no file", "garbage"])
def test_damaged_files_are_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "k.safetensors"
    fitted().save(path)
    arrays = load_file(path)
    match damage:
        case "missing":
            del arrays["mean"]
        case "shape":
            arrays["rows"] = arrays["rows"][:, :3].copy()
        case "nan":
            arrays["weights"][0] = np.nan
        case "dtype":
            arrays["mean"] = arrays["mean"].astype(np.float32)
    save_file(arrays, path)
    if damage == "no file":
        path.unlink()
    if damage == "garbage":
        path.write_bytes(b"x" * 100)
    with pytest.raises(BenchError, match=r"k\.safetensors"):
        KernelRegression.load(path)
