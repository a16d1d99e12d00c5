import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import WORD_VECTORS, small_examples
from transformer_nfn.bench.errors import BenchError, LeakError
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models import agreement
from transformer_nfn.bench.models.registry import MODELS, main_models
from transformer_nfn.bench.models.saved import load_predictor
from transformer_nfn.bench.protocol import computing as cells_module
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import (
    CellJob,
    Finished,
    cells_url,
    finished_cells,
    fit_and_save,
    prepared,
    run_cell,
)
from transformer_nfn.bench.protocol.experiments import experiment_cells
from transformer_nfn.bench.protocol.loading import data_digest, load_examples
from transformer_nfn.bench.protocol.planning import estimate_seconds
from transformer_nfn.bench.protocol.readable import check_known
from transformer_nfn.bench.protocol.runner import Bench
from transformer_nfn.bench.protocol.splits import check_split
from transformer_nfn.jobs import Done, Failed, InProcess, ShardFolder

#: The task of the small zoo is made up: it has no inputs that could be shown.
USABLE = {name for name in main_models() if MODELS[name].tier not in ("inputs", "labels")}


#: Few agreement probes, for tests that are about something else.
PROBED: dict[str, Any] = {"parts": 2, "probes": 9, "steps": 2}


@pytest.fixture(autouse=True, scope="module")
def many_at_once() -> Iterator[None]:
    """The networks here are small enough for more than four of them in memory together."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agreement, "_AT_ONCE", 24)
        yield


def change_settings(patch: pytest.MonkeyPatch, model: str, changes: dict[str, Any]) -> None:
    """Let a model of the benchmark have other settings."""
    settings = {**MODELS[model].settings, **changes}
    patch.setitem(MODELS, model, replace(MODELS[model], settings=settings))


def run(cells: list[Cell], out: Path) -> list[Done | Failed]:
    with InProcess() as executor:
        return list(Bench(cells, out).run(executor))


@pytest.fixture(scope="module")
def finished(zoo_folder: str, tmp_path_factory: pytest.TempPathFactory) -> list[Finished]:
    out = tmp_path_factory.mktemp("bench")
    cells = experiment_cells("main", zoo_folder, splits=[1])
    assert {cell.model for cell in cells} == USABLE
    with pytest.MonkeyPatch.context() as patch:
        small: dict[str, dict[str, Any]] = {"agreement": PROBED, "agreement-invariants": PROBED}
        small["agreement-noise"] = {**PROBED, "steps": 0}
        for name in USABLE:
            if (fitting := MODELS[name].settings.get("fitting")) is not None:
                small[name] = {"fitting": {**fitting, "epochs": 4, "warmup": 1}}
        for name, changes in small.items():
            change_settings(patch, name, changes)
        outcomes = run(cells, out)
        assert [one.error for one in outcomes if isinstance(one, Failed)] == []
        return finished_cells(out)


def test_every_model_of_the_main_table_gives_a_cell(finished):
    assert {one.record["model"] for one in finished} == USABLE


def test_a_cell_holds_its_predictions_and_their_tau(finished):
    for cell in finished:
        predicted, accuracy = cell.column("predicted"), cell.column("test_accuracy")
        assert cell.record["tau"] == kendall_tau(predicted, accuracy)
        assert cell.record["tau_moved"] == kendall_tau(cell.column("moved"), accuracy)
        assert len(predicted) == cell.record["test_rows"] == 60 * 3 // 5
        assert np.isfinite(predicted).all()


def test_a_record_has_what_reports_need(finished):
    for cell in finished:
        record = cell.record
        assert (record["zoo"], record["track"], record["split"]) == ("small", "independent", 1)
        assert record["fit_seconds"] > 0
        assert record["zoo_runs"] == 60
        assert json.dumps(record)


def test_models_that_promise_it_do_not_see_the_group(finished):
    for cell in finished:
        change = abs(cell.record["tau_moved"] - cell.record["tau"])
        if MODELS[cell.record["model"]].invariant:
            assert change <= 0.01, cell.record["model"]
    moved = {
        c.record["model"]: not np.allclose(c.column("moved"), c.column("predicted"))
        for c in finished
    }
    assert moved["mlp"]
    assert moved["statnn"]


def test_strong_controls_learn_the_made_up_accuracy(finished):
    taus = {cell.record["model"]: cell.record["tau"] for cell in finished}
    assert min(taus[name] for name in ("statistics", "invariants", "hyperparameters")) > 0.6


def test_a_finished_cell_is_never_computed_again(zoo_folder, tmp_path, monkeypatch):
    cells = [Cell(zoo=zoo_folder, model="hyperparameters", split=s) for s in (0, 1)]
    assert len(run(cells[:1], tmp_path)) == 1
    bench = Bench(cells, tmp_path)
    assert [job.cell.split for job in bench.jobs] == [1]
    run(cells, tmp_path)
    monkeypatch.setattr(cells_module, "run_cell", partial(pytest.fail, "computed again"))
    assert run(cells, tmp_path) == []


def test_a_cells_name_follows_from_all_that_matters(zoo_folder, tmp_path):
    base = Cell(zoo=zoo_folder, model="hyperparameters", split=0)
    copied = shutil.copytree(zoo_folder, tmp_path / "elsewhere")
    assert Cell(zoo=str(copied), model="hyperparameters", split=0).name == base.name
    others = [
        base.model_copy(update=change)
        for change in (
            {"split": 1},
            {"model": "invariants"},
            {"checkpoints": "last"},
            {"runs": 30},
            {"augment": 1.0},
            {"threshold": 0.5},
            {"train_runs": 30},
            {"test_zoo": str(copied)},
            {"seed": 1},
        )
    ]
    grown = write_zoo(tmp_path / "grown", small_examples(70))
    others.append(Cell(zoo=str(grown), model="hyperparameters", split=0))
    assert len({base.name, *(cell.name for cell in others)}) == 1 + len(others)


def test_fields_that_came_later_do_not_change_the_names_of_older_cells(zoo_folder):
    cell = Cell(zoo=zoo_folder, model="invariants", split=2, augment=1.0)
    content = {
        "model": "invariants",
        "split": 2,
        "augment": 1.0,
        "threshold": None,
        "version": 1,
        "data": data_digest(zoo_folder, "epochs", None),
        "settings": dict(MODELS["invariants"].settings),
    }
    spelled = json.dumps(content, sort_keys=True).encode()
    assert cell.name == f"invariants-2-{hashlib.sha256(spelled).hexdigest()[:20]}"


def test_a_seed_is_of_the_fit_alone(zoo_folder, tmp_path):
    cells = experiment_cells("main", zoo_folder, models=["forest"], splits=[1], seeds=range(3))
    assert [(cell.seed, cell.fit_seed) for cell in cells] == [(0, 1), (1, 1001), (2, 2001)]
    run(cells[:2], tmp_path)
    one, other = sorted(finished_cells(tmp_path), key=lambda cell: cell.record["seed"])
    assert [one.record["seed"], other.record["seed"]] == [0, 1]
    for column in ("run_id", "twins", "test_accuracy"):
        assert one.table[column] == other.table[column]
    assert not np.array_equal(one.column("predicted"), other.column("predicted"))


def test_a_cell_says_what_it_is(zoo_folder):
    cell = Cell(zoo=zoo_folder, model="mlp", split=0, train_runs=75, test_zoo="zoos/other")
    assert str(cell) == "small: mlp, split 0, trained on the first 75 runs, tested on other"
    assert str(Cell(zoo=zoo_folder, model="mlp", split=0, seed=2)) == "small: mlp, split 0, seed 2"


def test_a_cell_that_fails_stops_no_other(zoo_folder, tmp_path, monkeypatch):
    cells = [Cell(zoo=zoo_folder, model="hyperparameters", split=s) for s in (0, 1)]
    whole = cells_module.prepared

    def empty(cell: Cell) -> object:
        divided = whole(cell)
        nothing = divided.train.take(np.arange(0))
        check_split(nothing if cell.split == 0 else divided.train, divided.validation, divided.test)
        return divided

    monkeypatch.setattr(cells_module, "prepared", empty)
    outcomes = run(cells, tmp_path)
    assert [type(one) for one in outcomes] == [Failed, Done]
    assert "BenchError: the training set is empty" in outcomes[0].error
    assert (
        outcomes[0].reason == "the training set is empty: take a larger zoo, or other checkpoints"
    )
    assert len(ShardFolder(cells_url(tmp_path)).names()) == 1


def test_augmentation_adds_a_moved_copy_of_every_row(zoo_folder):
    plain = prepared(Cell(zoo=zoo_folder, model="mlp", split=0))
    twofold = prepared(Cell(zoo=zoo_folder, model="mlp", split=0, augment=10.0))
    for one, two in zip((plain.train, plain.test), (twofold.train, twofold.test), strict=True):
        assert len(two) == 2 * len(one)
        assert (two.weights[: len(one)] == one.weights).all()
        moved = two.weights[len(one) :]
        assert not np.allclose(moved.numpy(), one.weights.numpy())
        assert two.accuracy.tolist() == [*one.accuracy, *one.accuracy]
    assert (twofold.test.weights[-3:] - twofold.train.weights[-3:]).abs().max() > 0


def test_a_threshold_leaves_lower_rows_out_on_every_side(zoo_folder):
    divided = prepared(Cell(zoo=zoo_folder, model="mlp", split=0, threshold=0.5))
    whole = load_examples(zoo_folder, "epochs", None)
    kept = sum(len(side) for side in (divided.train, divided.validation, divided.test))
    assert kept == (whole.accuracy >= 0.5).sum() < len(whole)
    assert min(side.accuracy.min() for side in (divided.train, divided.test)) >= 0.5


def test_a_leak_made_by_preparing_is_caught(zoo_folder, monkeypatch):
    def swapped(examples: object, *_: object, **__: object) -> object:
        return load_examples(zoo_folder, "epochs", None)

    monkeypatch.setattr(cells_module, "moved_by_group", swapped)
    with pytest.raises(LeakError):
        prepared(Cell(zoo=zoo_folder, model="mlp", split=0, augment=1.0))


def test_a_kept_model_has_the_seed_of_its_fit(zoo_folder, tmp_path):
    cell = Cell(zoo=zoo_folder, model="statistics", split=1, seed=2)
    record = run_cell(CellJob(cell, "x", str(tmp_path), "cpu", True))
    saved = load_predictor(tmp_path / "models" / "x")
    assert saved.description.seed == record["fit_seed"] == 2001


def test_models_are_kept_where_asked(zoo_folder, tmp_path):
    job = CellJob(
        Cell(zoo=zoo_folder, model="invariants", split=0), "x", str(tmp_path), "cpu", True
    )
    run_cell(job)
    assert (tmp_path / "models" / "x" / "predictor.json").is_file()
    assert not (tmp_path / "fits" / "x").exists()


def test_unknown_models_are_refused(zoo_folder, tmp_path):
    with pytest.raises(BenchError, match="there are nfn, nfn-authors, mlp"):
        Bench([Cell(zoo=zoo_folder, model="oracle", split=0)], tmp_path)


def test_parts_that_networks_do_not_have(tmp_path):
    zoo = str(write_zoo(tmp_path / "zoo", small_examples(40, shape=WORD_VECTORS)))
    cells = experiment_cells("components", zoo, splits=[0])
    assert [cell.model for cell in cells] == ["nfn-encoder", "nfn-classifier", "nfn"]
    check_known(cells)
    for model in ("nfn-embedding", "nfn-encoder-embedding"):
        with pytest.raises(BenchError, match=f"{model} cannot .* networks have none: they are"):
            check_known([Cell(zoo=zoo, model=model, split=0)])


def test_the_cells_of_each_experiment(zoo_folder):
    def count(experiment, **settings):
        return len(experiment_cells(experiment, zoo_folder, **settings))

    assert count("main") == 5 * len(USABLE)
    assert len(main_models()) == len(USABLE) + 4 == 22
    assert count("components", splits=[0]) == 7
    assert count("channels", splits=[0, 1]) == 16
    assert count("ranks", splits=[0, 1]) == 10
    assert count("augmentation", splits=[0], models=["nfn", "mlp"]) == 6
    assert count("thresholds", splits=[0], models=["mlp"]) == 3
    # Fits among fewer runs are the same cells as those of a learning curve.
    (fewer,) = experiment_cells("main", zoo_folder, models=["mlp"], splits=[0], train_runs=20)
    assert fewer == Cell(zoo=zoo_folder, model="mlp", split=0, train_runs=20)
    for enough in (
        len(set(load_examples(zoo_folder, "epochs", None).column("run"))),
        10_000,
    ):  # all of the zoo's runs are not fewer
        (whole,) = experiment_cells("main", zoo_folder, models=["mlp"], train_runs=enough)[:1]
        assert whole.train_runs is None
    moved = experiment_cells("augmentation", zoo_folder, models=["mlp"], splits=[0], train_runs=20)
    assert [(cell.augment, cell.train_runs) for cell in moved] == [(1, 20), (10, 20), (100, 20)]
    with pytest.raises(BenchError, match=r"experiments main, .*, augmentation: not sizes"):
        count("sizes", train_runs=75)


def test_cells_of_other_settings_are_left_out(zoo_folder, tmp_path, monkeypatch):
    run([Cell(zoo=zoo_folder, model="hyperparameters", split=0)], tmp_path)
    assert len(finished_cells(tmp_path)) == 1
    changed = {**MODELS["hyperparameters"].settings, "features": "statistics"}
    kind = replace(MODELS["hyperparameters"], settings=changed)
    monkeypatch.setitem(MODELS, "hyperparameters", kind)
    assert finished_cells(tmp_path) == []


def test_settings_may_be_others_on_some_networks(zoo_folder, tmp_path, monkeypatch):
    def short(epochs):
        usual = MODELS["mlp"].settings["fitting"]
        return {"fitting": {**usual, "epochs": epochs, "warmup": 1}}

    def specially(task, track):
        kind = replace(MODELS["mlp"], special={(task, track): short(3)})
        monkeypatch.setitem(MODELS, "mlp", kind)
        return cell.name

    change_settings(monkeypatch, "mlp", short(2))
    cell = Cell(zoo=zoo_folder, model="mlp", split=0)
    plain = cell.name
    task = load_examples(zoo_folder, "epochs", None).table["task"][0].as_py()
    assert plain == specially(task, "shared") == specially("another", "independent")
    assert plain != specially(task, "independent")
    fit_and_save(cell, tmp_path / "saved")
    saved = load_predictor(tmp_path / "saved")
    assert saved.description.record["settings"] == short(3)
    assert saved.predictor.fitting.epochs == 3
    run([cell], tmp_path)
    (done,) = finished_cells(tmp_path)
    assert (done.record["settings"], done.record["epoch"]) == (short(3), 3)
    specially(task, "shared")
    assert finished_cells(tmp_path) == []


def test_the_plan_calibrates_what_is_unknown_and_scales_what_is_known(
    zoo_folder, tmp_path, monkeypatch
):
    change_settings(monkeypatch, "agreement", {**PROBED, "steps": 600})
    cells = [
        Cell(zoo=zoo_folder, model=m, split=0) for m in ("agreement", "statnn", "hyperparameters")
    ]
    seconds = estimate_seconds(cells, tmp_path)
    assert set(seconds) == set(cells)
    assert all(0 < cost < 600 for cost in seconds.values())
    run(cells[2:], tmp_path)
    record = finished_cells(tmp_path)[0].record
    known = estimate_seconds([cells[2].model_copy(update={"split": 2})], tmp_path)
    assert list(known.values()) == [pytest.approx(record["fit_seconds"])]
