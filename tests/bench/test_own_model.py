"""A model of one's own is computed, planned and shown like the others."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench.test_cells import run
from transformer_nfn.bench import Kind, experiment_cells, register_predictor, write_report
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.models.saved import load_predictor
from transformer_nfn.bench.protocol.planning import estimate_seconds
from transformer_nfn.jobs import Failed


class Scale:
    """Predicts by the size of all weights."""

    def __init__(self, power: float) -> None:
        self.power = power

    parameter_count = None

    def fit(self, train, validation, *, state=None, watch=None) -> None:
        pass

    def predict(self, examples) -> np.ndarray:
        return (examples.weights.double() ** 2).mean(1).numpy() ** self.power

    def save(self, folder: Path) -> None:
        (folder / "scale.json").write_text(json.dumps(self.power))

    def load(self, folder: Path) -> None:
        self.power = json.loads((folder / "scale.json").read_text())


def make(*, seed: int, tokens: int, device: str, power: float) -> Scale:
    return Scale(power)


KIND = Kind("My scale", "the size of all weights", "own", "weights", False, {"power": 0.5}, make)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(MODELS, "mine", KIND)  # so that it is taken away again
    register_predictor("mine", KIND)
    return "mine"


@pytest.mark.usefixtures("plain_pictures")
def test_it_stands_in_the_report_and_is_missed_where_it_is_not_registered(
    registered, zoo_folder, tmp_path, monkeypatch
):
    models = ["hyperparameters", registered]
    cells = experiment_cells("main", zoo_folder, models=models, splits=[0, 1])
    assert registered in {c.model for c in experiment_cells("main", zoo_folder)}
    assert set(estimate_seconds(cells, tmp_path / "out")) == set(cells)
    outcomes = run(cells, tmp_path / "out")
    assert [one.error for one in outcomes if isinstance(one, Failed)] == []

    def page() -> str:
        write_report(tmp_path / "out", tmp_path / "report")
        return (tmp_path / "report" / "index.md").read_text(encoding="utf-8")

    shown = page()
    assert "|My scale|" in shown
    detail = (tmp_path / "report" / "small-independent.md").read_text(encoding="utf-8")
    assert detail.count("| My scale |") == 4  # τ, differences, cost, under the group
    assert "# mine: by a program that calls register_predictor" in detail
    results = json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8"))
    assert {one["model"] for one in results["records"]} == set(models)
    monkeypatch.delitem(MODELS, registered)
    assert "are left out: `mine` (2). A model of one's own has to be registered" in page()


def test_it_is_saved_and_loaded_by_its_name(registered, zoo_folder, tmp_path):
    from transformer_nfn.bench import Cell, fit_and_save

    fit_and_save(Cell(zoo=zoo_folder, model=registered, split=0), tmp_path / "model")
    assert load_predictor(tmp_path / "model").predictor.power == 0.5


def test_a_report_of_nothing_else_says_what_is_missing(
    registered, zoo_folder, tmp_path, monkeypatch
):
    run(experiment_cells("main", zoo_folder, models=[registered], splits=[0]), tmp_path)
    monkeypatch.delitem(MODELS, registered)
    with pytest.raises(BenchError, match=r"left out: `mine` \(1\)"):
        write_report(tmp_path, tmp_path / "report")


def test_the_later_of_two_counts(registered):
    register_predictor(registered, replace(KIND, settings={"power": 2.0}))
    assert MODELS[registered].settings == {"power": 2.0}


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("nfn", KIND, "is a model of the benchmark"),
        ("My Model", KIND, "small letters"),
        ("mine", replace(KIND, origin="ours"), '"own"'),
        ("mine", replace(KIND, settings={"path": Path()}), "JSON"),
    ],
)
def test_what_cannot_be_registered(name, kind, says):
    with pytest.raises(BenchError, match=says):
        register_predictor(name, kind)
    assert "mine" not in MODELS
