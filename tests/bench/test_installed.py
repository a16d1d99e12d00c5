"""Models of other packages, by entry points: of a package that pip has installed."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.run import tnfn
from transformer_nfn.bench import MODELS, BenchError, Cell, load_installed, load_predictor
from transformer_nfn.bench.models.registry import model_named

MODULE = """
import numpy as np
from transformer_nfn.bench import Kind

class Scale:
    parameter_count = None
    def fit(self, train, validation, *, state=None, watch=None):
        pass
    def predict(self, examples):
        return np.asarray(examples.weights.double().square().mean(1))
    def save(self, folder):
        pass
    load = save

KIND = Kind("Scale", "the size of all weights", "own", "weights", False, {}, lambda **_: Scale())
NUMBER = 3
"""
PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "scale-model"
version = "1.0"

[project.entry-points."transformer_nfn.predictors"]
scale-of-all = "scale_model:KIND"

[tool.setuptools]
py-modules = ["scale_model"]
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a small package."""
    home = tmp_path_factory.mktemp("package")
    (home / "scale_model.py").write_text(MODULE)
    (home / "pyproject.toml").write_text(PROJECT)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "-q"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", home / "site", home]
    subprocess.run(command, check=True, capture_output=True)
    return home / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    before = dict(MODELS)
    monkeypatch.syspath_prepend(site)
    load_installed.cache_clear()
    yield "scale-of-all"
    MODELS.clear()
    MODELS.update(before)
    load_installed.cache_clear()


def entry(home: Path, monkeypatch: pytest.MonkeyPatch, value: str, name: str = "mine") -> None:
    """A distribution with one entry point, made by hand."""
    folder = home / "hand_made-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Name: hand-made\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[transformer_nfn.predictors]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(home)
    load_installed.cache_clear()


def test_it_is_one_of_the_models_of_every_command(installed, zoo_folder, tmp_path, capsys):
    ended = tnfn(capsys, "bench", "models", "--json")
    assert json.loads(ended.out)["models"][installed]["origin"] == "own"
    words = ["--zoo", zoo_folder, "--models", f"{installed},hyperparameters", "--splits", "1"]
    ended = tnfn(capsys, "bench", "run", *words, "--out", tmp_path / "bench")
    assert ended.code == 0, ended
    pages = sorted((tmp_path / "bench" / "report").glob("*.md"))
    page = "\n".join(one.read_text(encoding="utf-8") for one in pages)
    assert "|Scale|" in page
    assert "register_predictor" not in page  # the command line knows it
    ended = tnfn(
        capsys, "bench", "fit", "--zoo", zoo_folder, "--model", installed, "--name", "of-a-package"
    )
    assert ended.code == 0, ended
    assert load_predictor("of-a-package").description.model == installed


def test_a_process_of_its_own_computes_its_cells_as_workers_do(site, zoo_folder, tmp_path):
    """What a worker of Ray gets: a job by its module and name, nothing of this process."""
    cell = Cell(zoo=zoo_folder, model="hyperparameters", split=0)
    script = (
        "import sys\n"
        "from transformer_nfn.bench import Cell\n"
        "from transformer_nfn.bench.protocol.computing import CellJob, run_cell\n"
        "assert 'scale_model' not in sys.modules\n"
        f"cell = Cell(zoo={zoo_folder!r}, model='scale-of-all', split={cell.split})\n"
        f"print(run_cell(CellJob(cell, 'x', {str(tmp_path)!r}, 'cpu', False))['tau'])\n"
    )
    path = os.pathsep.join([str(site), *(place for place in sys.path if place)])
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(ended.stdout) > 0.8


def test_nothing_is_imported_before_it_is_needed(installed):
    sys.modules.pop("scale_model", None)
    assert model_named("nfn").title == "Transformer-NFN"
    assert "scale_model" not in sys.modules
    assert model_named(installed).title == "Scale"


@pytest.mark.parametrize(
    ("value", "name", "says"),
    [
        ("scale_model:NUMBER", "mine", "scale_model:NUMBER of an installed package is no Kind"),
        (
            "scale_model:MISSING",
            "mine",
            "the model 'mine' of an installed package cannot",
        ),
        ("no_such_module:KIND", "mine", "no_such_module"),
        ("scale_model:KIND", "nfn", "'nfn' is a model of the benchmark"),
        ("scale_model:KIND", "My_Model", "small letters"),
        ("another:KIND", "scale-of-all", "two installed packages bring a model 'scale-of-all'"),
    ],
)
def test_a_broken_one_is_refused_in_one_line(
    value, name, says, installed, zoo_folder, tmp_path, monkeypatch, capsys
):
    entry(tmp_path / "hand", monkeypatch, value, name)
    with pytest.raises(BenchError, match=says):
        load_installed()
    words = ["--zoo", zoo_folder, "--models", "hyperparameters", "--out", tmp_path / "out"]
    for command in (["models"], ["run", *words]):
        ended = tnfn(capsys, "bench", *command)
        assert ended.code == 1
        assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_what_lies_in_the_folder_one_is_in_is_not_installed(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    entry(tmp_path, monkeypatch, "evil:KIND")
    monkeypatch.syspath_prepend("")
    assert load_installed() == frozenset()
    load_installed.cache_clear()


def test_what_a_program_registers_comes_before(installed, monkeypatch):
    from dataclasses import replace

    mine = replace(MODELS["nfn"], origin="own", title="Mine")
    monkeypatch.setitem(MODELS, installed, mine)
    load_installed()
    assert MODELS[installed] is mine
