from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import RESIDUAL, SHAPE, WORD_VECTORS, small_examples
from tests.bench.test_cells import run
from tests.bench.test_scores import fake
from transformer_nfn.bench.errors import BenchError, LeakError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import SEEN, Finished, finished_cells, prepared
from transformer_nfn.bench.protocol.experiments import experiment_cells
from transformer_nfn.bench.protocol.readable import check_readable, is_readable
from transformer_nfn.bench.protocol.splits import check_across
from transformer_nfn.bench.report.across import transfer_table, transfers
from transformer_nfn.bench.report.scores import comparisons
from transformer_nfn.jobs import Failed
from transformer_nfn.zoo.nets import NetShape

OTHER_SIZES = NetShape(tokens=9, inputs=5, D=12, heads=3, D_A=10, blocks=3, hidden=6, classes=2)


def renamed(examples: Examples) -> Examples:
    """As another zoo has it: the same hyperparameters, other runs."""
    place = examples.table.column_names.index("run_id")
    names = pa.array([f"other {name}" for name in examples.table.column("run_id").to_pylist()])
    return replace(examples, table=examples.table.set_column(place, "run_id", names))


@pytest.fixture(scope="module")
def residual_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = renamed(small_examples(30, shape=RESIDUAL, seed=1))
    return str(write_zoo(tmp_path_factory.mktemp("zoos") / "other", made, name="other"))


@pytest.fixture(scope="module")
def finished(
    zoo_folder: str, residual_folder: str, tmp_path_factory: pytest.TempPathFactory
) -> list[Finished]:
    out = tmp_path_factory.mktemp("bench")
    cells = experiment_cells(
        "across",
        zoo_folder,
        models=["hyperparameters", "blockwise"],
        splits=[0, 1],
        test_zoo=residual_folder,
    )
    outcomes = run(cells, out)
    assert [one.error for one in outcomes if isinstance(one, Failed)] == []
    return finished_cells(out)


def test_all_rows_of_the_other_zoo_are_tested(finished):
    assert len(finished) == 4
    for cell in finished:
        record, accuracy = cell.record, cell.column("test_accuracy")
        assert (record["zoo"], record["test_zoo"], record["test_folder"]) == (
            "small",
            "other",
            "other",
        )
        assert (record["zoo_runs"], record["test_zoo_runs"]) == (60, 30)
        assert record["test_rows"] == len(cell.table) == 90
        assert record["train_rows"] == 60 * 3 * 7 // 10
        assert record["tau"] == kendall_tau(cell.column("predicted"), accuracy)


def test_trees_on_block_features_read_the_other_kind_of_block(finished):
    """Accuracy follows from the scale of the weights, in both zoos."""
    for cell in finished:
        if cell.record["model"] == "blockwise":
            assert cell.record["tau"] > 0.5
            assert abs(cell.record["tau_moved"] - cell.record["tau"]) < 0.01


def test_hyperparameters_that_were_learned_from_are_marked(finished):
    for cell in finished:
        fold = cell.column("run") % 10
        tested = np.isin(fold, [2 * cell.record["split"], 2 * cell.record["split"] + 1])
        np.testing.assert_array_equal(cell.column(SEEN), ~tested)


def test_a_transfer_compares_all_rows_and_unseen_ones(finished):
    (transfer,) = transfers(finished, ["hyperparameters", "blockwise"])
    assert transfer.whole.models == ["hyperparameters", "blockwise"]
    assert len(transfer.whole.pooled("blockwise")[0]) == 180
    assert transfer.unseen is not None
    assert len(transfer.unseen.pooled("blockwise")[0]) == 36
    assert transfer.at_home is None
    lines = transfer_table(transfer).splitlines()
    assert lines[0] == "| model | all rows | rows of unseen hyperparameters |"
    assert lines[-1].startswith("| noise ceiling |")
    assert comparisons(finished, ["hyperparameters", "blockwise"]) == []


def test_where_nothing_is_transferred_stands_beside(finished):
    home = [fake("blockwise", s, 0.1, zoo="small", folder="small") for s in range(5)]
    there = [fake("blockwise", s, 0.1, zoo="other", folder="other") for s in range(5)]
    (transfer,) = transfers([*finished, *home, *there], ["hyperparameters", "blockwise"])
    assert transfer.at_home is not None
    assert transfer.trained_there is not None
    header = transfer_table(transfer).splitlines()[0]
    assert header.endswith("| tested at home | trained there |")


def test_five_splits_of_the_same_test_rows_are_one_sample():
    """Drawn apart, the mean of five copies would have an interval less than half as wide."""
    one = fake("nfn", 0, 0.3)
    copies = [Finished({**one.record, "split": split}, one.table) for split in range(5)]
    (single,), (five,) = (comparisons(cells, ["nfn"]) for cells in ([one], copies))
    assert five.tau("nfn") == pytest.approx(single.tau("nfn"))


# ------------------------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    ("model", "tested", "readable"),
    [
        ("hyperparameters", OTHER_SIZES, True),
        ("blockwise", OTHER_SIZES, True),
        ("blockwise", RESIDUAL, True),
        ("probes", RESIDUAL, True),
        ("agreement", RESIDUAL, True),
        ("agreement", OTHER_SIZES, False),
        ("agreement-noise", RESIDUAL, True),
        ("probes", WORD_VECTORS, False),
        ("probegen", RESIDUAL, True),
        ("probegen", WORD_VECTORS, False),
        ("tokens", RESIDUAL, False),
        ("statistics", SHAPE.model_copy(update={"inputs": 7, "classes": 9}), True),
        ("statistics", RESIDUAL, False),
        ("invariants", RESIDUAL, False),
        ("nfn", SHAPE.model_copy(update={"tokens": 9}), True),
        ("nfn", OTHER_SIZES, False),
        ("agreement-invariants", RESIDUAL, False),
    ],
)
def test_which_models_read_which_nets(model, tested, readable):
    assert is_readable(model, SHAPE, tested) == readable


def test_what_cannot_be_read_is_said_before_the_fit(zoo_folder, residual_folder):
    with pytest.raises(BenchError, match="block is residual instead of paper"):
        check_readable("invariants", SHAPE, RESIDUAL)
    cell = Cell(zoo=zoo_folder, model="invariants", split=0, test_zoo=residual_folder)
    with pytest.raises(BenchError, match="cannot read the networks of the test zoo"):
        prepared(cell)


def test_the_models_are_those_that_can_read_both(zoo_folder, residual_folder):
    cells = experiment_cells("across", zoo_folder, test_zoo=residual_folder)
    models = {cell.model for cell in cells}
    assert {"hyperparameters", "blockwise", "probes", "agreement"} <= models
    assert not {"nfn", "mlp", "invariants", "statistics"} & models


def test_what_reads_no_weights_is_not_augmented(zoo_folder):
    cells = experiment_cells("augmentation", zoo_folder)
    models = {cell.model for cell in cells}
    assert {"nfn", "mlp", "forest", "invariants", "agreement-invariants", "nfn-balanced"} <= models
    unchanged = {"agreement", "agreement-noise", "probes", "probegen", "hyperparameters"}
    assert not (unchanged | {"labels-50", "confidence", "consensus"}) & models


def test_only_this_experiment_has_a_test_zoo(zoo_folder, residual_folder):
    with pytest.raises(BenchError, match="across"):
        experiment_cells("across", zoo_folder)
    with pytest.raises(BenchError, match="across"):
        experiment_cells("main", zoo_folder, test_zoo=residual_folder)


# -------------------------------------------------------------------------------------- leaks


def sides() -> tuple[Examples, Examples, Examples]:
    fold = (made := small_examples(20)).column("fold")
    return made.take(fold > 1), made.take(fold == 1), renamed(small_examples(10, seed=1))


def test_near_twins_may_be_in_both_zoos():
    train, validation, test = sides()
    assert set(train.column("twins")) & set(test.column("twins"))
    check_across(train, validation, test)


def test_a_zoo_is_not_tested_on_itself(zoo_folder, tmp_path: Path):
    with pytest.raises(LeakError, match="run_id"):
        prepared(Cell(zoo=zoo_folder, model="blockwise", split=0, test_zoo=zoo_folder))


def test_a_copied_block_under_another_name_is_caught():
    train, validation, test = sides()
    offset, dims = SHAPE.stored["blocks.1.A"]
    part = slice(offset, offset + int(np.prod(dims)))
    test.weights[3, part] = validation.weights[0, part]
    with pytest.raises(LeakError, match="matrix A"):
        check_across(train, validation, test)


def test_matrices_that_decayed_to_nothing_are_no_copies():
    train, validation, test = sides()
    for side in (train, test):
        side.weights[0] = 0
    check_across(train, validation, test)


def test_an_empty_side_is_refused():
    train, validation, _ = sides()
    with pytest.raises(BenchError, match="test set is empty"):
        check_across(train, validation, train.take(np.arange(0)))
