from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import small_examples
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.protocol import experiments
from transformer_nfn.bench.protocol.loading import (
    chosen_checkpoints,
    data_digest,
    divide,
    load_examples,
    thresholds,
    track_of,
)
from transformer_nfn.jobs import ShardFolder
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.format.schema import COLUMNS, ROW_GROUP, zoo_table


def with_best(examples: Examples) -> pa.Table:
    """The last row of each run is its best one."""
    names = ["best" if e == 3 else str(e) for e in examples.column("epoch")]
    place = examples.table.column_names.index("checkpoint")
    return examples.table.set_column(place, "checkpoint", pa.array(names))


def test_which_checkpoints_count_is_a_setting():
    table = with_best(small_examples(10))
    names = np.array(table.column("checkpoint").to_pylist())
    chosen = {
        which: names[chosen_checkpoints(table, which)]
        for which in ("epochs", "last", "best", "all")
    }
    assert set(chosen["epochs"]) == {"1", "2"}
    assert len(chosen["epochs"]) == 20
    assert list(chosen["last"]) == ["2"] * 10
    assert list(chosen["best"]) == ["best"] * 10
    assert len(chosen["all"]) == 30


def test_examples_are_the_rows_of_the_zoo(zoo_folder):
    made = small_examples(60)
    examples = load_examples(zoo_folder, "epochs", None)
    assert examples.column("run").tolist() == made.column("run").tolist()
    np.testing.assert_array_equal(examples.weights.numpy(), made.weights.numpy())
    first = load_examples(zoo_folder, "last", 7)
    assert first.column("run").tolist() == list(range(7))


def test_a_zoo_that_grew_is_read_again(tmp_path):
    folder = str(write_zoo(tmp_path / "zoo", small_examples(20)))
    before = data_digest(folder, "epochs", None)
    assert len(load_examples(folder, "epochs", None)) == 60
    more = small_examples(30)
    fresh = more.take(more.column("run") >= 20)
    rows = [{k: row[k] for k in COLUMNS if k != "digest"} for row in fresh.table.to_pylist()]
    table = zoo_table(fresh.shape, rows, list(fresh.weights.numpy()))
    ShardFolder(f"{folder}/data").commit("more.parquet", table, row_group_size=ROW_GROUP)
    assert len(load_examples(folder, "epochs", None)) == 90
    assert data_digest(folder, "epochs", None) != before
    assert data_digest(folder, "epochs", 20) == before


def test_no_rows_are_an_error(zoo_folder):
    with pytest.raises(BenchError, match="no row"):
        load_examples(zoo_folder, "best", None)


def test_a_split_of_the_zoo(zoo_folder):
    divided = divide(zoo_folder, load_examples(zoo_folder, "epochs", None), 1)
    assert set(divided.test.column("fold")) == {2, 3}
    assert set(divided.validation.column("fold")) == {4}
    assert len(divided.train) == 60 * 3 * 7 // 10
    with pytest.raises(BenchError, match="0 to 4"):
        divide(zoo_folder, load_examples(zoo_folder, "epochs", None), 5)


@pytest.mark.parametrize(("seeds", "track"), [("run", "independent"), ("shared", "shared")])
def test_the_track_follows_from_the_seeds(tmp_path, seeds, track):
    folder = write_zoo(tmp_path / "zoo", small_examples(20), seeds=seeds)
    assert track_of(Zoo(folder)) == track


def with_accuracies(runs: int, accuracy: np.ndarray) -> Examples:
    examples = small_examples(runs, epochs=(1,))
    place = examples.table.column_names.index("test_accuracy")
    table = examples.table.set_column(place, "test_accuracy", pa.array(accuracy))
    return replace(examples, table=table)


def test_thresholds_are_quantiles_and_the_papers_where_enough_rows_remain():
    # 600 rows, 120 in each test set; 0.4 leaves 100 of them, 0.6 only 20.
    accuracy = np.repeat([0.3, 0.5, 0.9], [100, 400, 100])
    bounds = thresholds(with_accuracies(600, accuracy))
    assert [bound.name for bound in bounds] == [
        "none",
        "best 75 %",
        "best 50 %",
        "best 25 %",
        "≥ 20 %",
        "≥ 40 %",
    ]
    assert [bound.accuracy for bound in bounds] == [0.0, 0.5, 0.5, 0.5, 0.2, 0.4]


def test_models_are_trained_again_above_thresholds_that_leave_rows_out_once_each(monkeypatch):
    examples = with_accuracies(600, np.repeat([0.3, 0.5, 0.9], [100, 400, 100]))
    monkeypatch.setattr(experiments, "load_examples", lambda *_: examples)
    assert experiments.retrained("zoo", "epochs", None) == [0.5, 0.4]  # 0.2 leaves out none


def test_one_split_with_too_few_rows_takes_a_threshold_away():
    accuracy = np.full(600, 0.5)
    examples = with_accuracies(600, accuracy)
    assert "≥ 40 %" in {bound.name for bound in thresholds(examples)}
    accuracy[examples.column("fold") <= 1] = 0.1  # the first split's test rows
    names = {bound.name for bound in thresholds(with_accuracies(600, accuracy))}
    assert "≥ 40 %" not in names
