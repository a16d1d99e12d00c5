from pathlib import Path

import numpy as np
import pytest

from tests.bench.test_scores import fake
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import Finished, prepared
from transformer_nfn.bench.protocol.experiments import experiment_cells, smaller_sizes
from transformer_nfn.bench.report.learning import Learning, learning_table, learnings
from transformer_nfn.bench.report.pages.larger import sizes_page
from transformer_nfn.bench.report.pages.page import Page
from transformer_nfn.bench.report.scores import comparisons

NOISE = {75: 0.5, 150: 0.35, 300: 0.25, None: 0.18}


def sized(model: str = "nfn", sizes: tuple[int | None, ...] = tuple(NOISE)) -> list[Finished]:
    """A model that gets better with every size; 40 test runs a split, the whole zoo has 200."""
    return [
        fake(model, split, NOISE[size], train_runs=size, zoo_runs=600)
        for size in sizes
        for split in range(5)
    ]


def only(cells: list[Finished]) -> Learning:
    (learning,) = learnings(cells, ["nfn", "mlp"])
    return learning


def test_the_sizes_of_a_model_are_tested_on_the_same_rows():
    learning = only(sized())
    assert learning.sizes_of("nfn") == learning.sizes == [75, 150, 300, 600]
    taus = [learning.by_model["nfn"].tau(str(size)).mean for size in learning.sizes]
    assert taus == sorted(taus)
    cells = sized()
    cells[0] = fake("nfn", 0, 0.5, train_runs=75, zoo_runs=600, shift=1)
    with pytest.raises(BenchError, match="other rows"):
        learnings(cells, ["nfn"])


def test_a_curve_is_of_the_seeds_that_all_its_sizes_have():
    """A second fit of the whole zoo would make its last point another thing than the others."""
    once = only(sized())
    more = [fake("nfn", split, 0.9, zoo_runs=600, seed=1) for split in (0, 3)]
    again = only(sized() + more)
    assert again.by_model["nfn"].tau("600") == once.by_model["nfn"].tau("600")
    every = [
        fake("nfn", 3, NOISE[size], train_runs=size, zoo_runs=600, seed=1)
        for size in (75, 150, 300)
    ]
    both = only(sized() + more + every).by_model["nfn"]
    assert all(both.seeds(size, 3) == [0, 1] for size in both.models)
    assert both.seeds("600", 0) == [0]


def test_the_curve_goes_on_from_the_largest_size():
    learning = only(sized())
    curve = learning.curves["nfn"]
    ceiling = learning.ceiling("nfn")
    assert ceiling is not None
    assert curve.at(600).mean == pytest.approx(learning.by_model["nfn"].tau("600").mean, abs=0.03)
    assert curve.at(600).mean < curve.at(16_000).mean <= ceiling


def test_the_last_size_is_predicted_by_the_others_alone():
    learning = only(sized())
    expected = learning.last_predicted["nfn"]
    assert expected.low <= learning.by_model["nfn"].tau("600").mean <= expected.high
    assert expected.high - expected.low > 0.01  # three points and no fourth
    lying = [
        c if c.record["train_runs"] else fake("nfn", c.record["split"], 9.0, zoo_runs=600)
        for c in sized()
    ]
    assert only(lying).last_predicted["nfn"] == expected
    assert learning.back_tests() == {"nfn": True}
    assert only(lying).back_tests() == {"nfn": False}
    assert only(sized(sizes=(75, 150, None))).back_tests() == {}
    assert only(sized(sizes=(75, 150, None))).last_predicted == {}


def test_two_sizes_have_no_curve_but_a_table():
    learning = only(sized(sizes=(150, None)))
    assert learning.curves == {}
    assert learning_table(learning).splitlines()[2].endswith("|  |  | 5 |")


def test_one_size_is_no_learning_curve():
    assert learnings(sized(sizes=(None,)), ["nfn"]) == []


def test_the_table_has_a_column_for_each_size():
    cells = sized() + sized("mlp", (150, 300, None))
    lines = learning_table(only(cells)).splitlines()
    header = (
        "| model | 75 runs | 150 runs | 300 runs | 600 runs | the last, predicted by the others |"
    )
    assert lines[0] == f"{header} 16,000, extrapolated | splits |"
    assert len(lines) == 4
    mlp = next(line for line in lines if line.startswith("| MLP |"))
    assert mlp.startswith("| MLP |  | 0.")


def test_splits_that_a_size_lacks_are_left_out():
    cells = [
        cell for cell in sized() if cell.record["train_runs"] != 75 or cell.record["split"] < 2
    ]
    assert only(cells).by_model["nfn"].splits == [0, 1]


def test_a_zoo_that_grew_has_a_curve_of_its_own():
    grown = [fake("nfn", s, 0.1, train_runs=n, zoo_runs=1000) for n in (75, None) for s in range(5)]
    assert [one.sizes for one in learnings(sized() + grown, ["nfn"])] == [
        [75, 1000],
        [75, 150, 300, 600],
    ]


def test_smaller_sizes_stand_apart_from_the_main_table():
    (main,) = comparisons(sized(), ["nfn"])
    assert main.tau("nfn") == only(sized()).by_model["nfn"].tau("600")


# -------------------------------------------------------------------------------------- cells


def test_only_training_and_validation_are_thinned(zoo_folder):
    whole = prepared(Cell(zoo=zoo_folder, model="mlp", split=1))
    part = prepared(Cell(zoo=zoo_folder, model="mlp", split=1, train_runs=30))
    assert part.test.column("run_id").tolist() == whole.test.column("run_id").tolist()
    for side, full in ((part.train, whole.train), (part.validation, whole.validation)):
        expected = full.column("run")[full.column("run") < 30]
        np.testing.assert_array_equal(side.column("run"), expected)
    assert len(part.train) == 30 * 3 * 7 // 10
    assert set(part.validation.column("fold")) == {4}


def test_it_is_what_a_smaller_zoo_would_train_on(zoo_folder):
    part = prepared(Cell(zoo=zoo_folder, model="mlp", split=1, train_runs=30))
    small = prepared(Cell(zoo=zoo_folder, model="mlp", split=1, runs=30))
    assert part.train.column("run_id").tolist() == small.train.column("run_id").tolist()
    assert len(small.test) < len(part.test)


def test_too_few_runs_are_refused(zoo_folder):
    with pytest.raises(BenchError, match="validation set is empty"):
        prepared(Cell(zoo=zoo_folder, model="mlp", split=3, train_runs=8))  # fold 8 validates


def test_the_largest_size_is_the_main_experiments_cell(zoo_folder, monkeypatch):
    monkeypatch.setattr("transformer_nfn.bench.protocol.experiments.SIZES", (10, 20, 60, 75))
    assert smaller_sizes(zoo_folder, "epochs", None) == [10, 20]
    cells = experiment_cells("sizes", zoo_folder, models=["hyperparameters"], splits=[0])
    assert [cell.train_runs for cell in cells] == [10, 20, None]
    (main,) = experiment_cells("main", zoo_folder, models=["hyperparameters"], splits=[0])
    assert cells[-1].name == main.name
    assert len({cell.name for cell in cells}) == 3


@pytest.mark.usefixtures("plain_pictures")
def test_curves_that_fit_badly_are_named(tmp_path: Path) -> None:
    """One that stood still and then went on is no curve of this form."""
    again = {75: 9.0, 150: 0.3, 300: 0.3, None: 0.15}
    resumed = [
        fake("nfn", split, noise, train_runs=size, zoo_runs=600)
        for size, noise in again.items()
        for split in range(5)
    ]
    for cells, falls in ((resumed, True), (sized(), False)):
        learning = only(cells)
        assert learning.falls("nfn") == falls
        text = sizes_page(Page(tmp_path, "bench"), [learning])
        assert text is not None
        assert ("so it fits badly: Transformer-NFN." in text) == falls
