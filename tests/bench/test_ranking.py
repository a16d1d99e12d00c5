import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.bench.small import small_examples
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.guard import Guard
from transformer_nfn.bench.models.saved import load_predictor, named_folder, saved_names
from transformer_nfn.bench.protocol.computing import Cell, fit_and_save
from transformer_nfn.bench.ranking import checkpoint_files, rank_files
from transformer_nfn.group import conditioned, random_element
from transformer_nfn.zoo.nets import views


def export(examples: Examples, folder: Path, **metadata: str) -> list[Path]:
    """Files as `tnfn zoo export` writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for row, columns in enumerate(examples.table.to_pylist()):
        tensors = views(examples.weights[row : row + 1], examples.shape.stored)
        path = folder / f"{row:03d}.safetensors"
        save_file(
            {name: np.ascontiguousarray(tensor[0].numpy()) for name, tensor in tensors.items()},
            path,
            {name: str(value) for name, value in (columns | metadata).items()},
        )
        files.append(path)
    return files


NEW = small_examples(12, seed=99)


@pytest.fixture(scope="module", params=["invariants", "statistics", "hyperparameters", "statnn"])
def saved(request: pytest.FixtureRequest, zoo_folder: str, tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved") / request.param
    fit_and_save(Cell(zoo=zoo_folder, model=request.param, split=2), folder)
    return folder


def test_new_nets_are_ranked_well(saved, tmp_path):
    files = export(NEW, tmp_path)
    ranked = rank_files(load_predictor(saved), files)
    assert [one.predicted for one in ranked] == sorted(
        (one.predicted for one in ranked), reverse=True
    )
    by_path = {one.path: one.predicted for one in ranked}
    predicted = np.array([by_path[str(path)] for path in files])
    assert kendall_tau(predicted, NEW.accuracy) > 0.5
    assert sum(one.warning is not None for one in ranked) <= len(ranked) // 4


def test_nets_unlike_the_training_nets_get_a_warning(saved, tmp_path):
    odd = Examples(NEW.table, NEW.weights * 8 + 1, NEW.shape)
    ranked = rank_files(load_predictor(saved), export(odd, tmp_path))
    assert all(one.warning and "unlike the training nets" in one.warning for one in ranked)


def test_a_model_is_found_by_its_name(zoo_folder, tmp_path):
    record = fit_and_save(
        Cell(zoo=zoo_folder, model="hyperparameters", split=0), named_folder("mine")
    )
    assert "mine" in saved_names()
    loaded = load_predictor("mine")
    assert loaded.description.record["tau"] == record["tau"]
    card = (named_folder("mine") / "README.md").read_text(encoding="utf-8")
    assert "Hyperparameters" in card
    assert f"{record['tau']:.3f}" in card


def test_a_folder_with_something_else_is_not_replaced(zoo_folder, tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(BenchError, match="holds no model"):
        fit_and_save(Cell(zoo=zoo_folder, model="hyperparameters", split=0), tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["nobody", "/nowhere", "../up"])
def test_a_model_that_is_not_there_is_named(name):
    with pytest.raises(BenchError, match="no model"):
        load_predictor(name)


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", ""])
def test_a_name_is_no_path(name):
    with pytest.raises(BenchError, match="name"):
        named_folder(name)


def damaged(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "damaged"))


def test_damaged_models_are_refused(saved, tmp_path):
    folder = damaged(saved, tmp_path)
    described = json.loads((folder / "predictor.json").read_text())
    (folder / "predictor.json").write_text(json.dumps(described | {"format": 7}))
    with pytest.raises(BenchError, match="not the description"):
        load_predictor(folder)
    record = {name: value for name, value in described["record"].items() if name != "track"}
    (folder / "predictor.json").write_text(json.dumps(described | {"record": record}))
    with pytest.raises(BenchError, match="it does not say the track of the networks"):
        load_predictor(folder)
    (folder / "predictor.json").write_text(json.dumps(described | {"model": "oracle"}))
    with pytest.raises(BenchError, match="no model 'oracle'"):
        load_predictor(folder)
    (folder / "predictor.json").write_text(json.dumps(described))
    (folder / "guard.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BenchError, match="cannot be read"):
        load_predictor(folder)


def test_files_that_cannot_be_read_come_last_with_a_reason(saved, tmp_path):
    files = export(NEW.take(np.arange(5)), tmp_path)
    files[0].write_bytes(b"nonsense")
    tensors = load_file(files[1])
    save_file(tensors | {"extra": np.zeros(3, np.float32)}, files[1])
    save_file({n: t[:1] for n, t in tensors.items()}, files[2])
    broken = load_file(files[3])
    broken["classifier.bias2"] = np.full_like(broken["classifier.bias2"], np.nan)
    save_file(broken, files[3])
    ranked = rank_files(load_predictor(saved), files)
    assert [one.predicted is None for one in ranked] == [False, True, True, True, True]
    reasons = [one.warning or "" for one in ranked[1:]]
    for text in ("cannot be read", "unknown ['extra']", "not of ", "NaN"):
        assert any(text in reason for reason in reasons), text


def test_half_precision_is_refused_with_a_reason(saved, tmp_path):
    (file,) = export(NEW.take(np.arange(1)), tmp_path)
    save_file({n: t.astype(np.float16) for n, t in load_file(file).items()}, file)
    (ranked,) = rank_files(load_predictor(saved), [file])
    assert ranked.predicted is None
    assert "F16" in (ranked.warning or "")


def test_hyperparameters_must_be_in_the_file(zoo_folder, tmp_path):
    fit_and_save(Cell(zoo=zoo_folder, model="hyperparameters", split=0), tmp_path / "model")
    (file,) = export(NEW.take(np.arange(1)), tmp_path)
    save_file(load_file(file), file)
    with pytest.raises(BenchError, match="metadata"):
        rank_files(load_predictor(tmp_path / "model"), [file])


def test_files_and_folders_can_be_ranked(tmp_path):
    files = export(NEW.take(np.arange(3)), tmp_path / "nets")
    assert checkpoint_files([tmp_path / "nets"]) == files
    assert checkpoint_files([files[1], files[0]]) == [files[1], files[0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BenchError, match="nothing to rank"):
        checkpoint_files([tmp_path / "empty"])
    with pytest.raises(BenchError, match="does not exist"):
        checkpoint_files([tmp_path / "nowhere"])


def test_other_coordinates_are_foreign_only_to_models_that_see_them():
    examples = small_examples(60)
    fold = examples.column("fold")
    train, validation = examples.take(fold > 2), examples.take(fold <= 2)
    element = random_element(
        examples.shape.spec,
        networks=len(validation),
        blocks=2,
        generator=torch.Generator().manual_seed(0),
        matrices=conditioned(1e3),
    )
    for invariant in (True, False):
        guard = Guard.fitted(train, validation, invariant=invariant)
        before = (guard.outside(validation) > guard.limit).mean()
        after = (guard.outside(validation.moved(element)) > guard.limit).mean()
        assert before < 0.1
        assert (after > 0.9) is not invariant
