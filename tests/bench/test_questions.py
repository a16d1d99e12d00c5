"""Other questions than accuracy, and runs of a kind that nobody learned from."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from tests.bench.small import small_examples, three_parts
from tests.bench.test_cells import run
from transformer_nfn.bench import experiment_cells, write_report
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.featured import FeaturePredictor
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import finished_cells, prepared
from transformer_nfn.bench.protocol.experiments import Experiment
from transformer_nfn.bench.protocol.heldout import HELD_OUT, kinds_there, without
from transformer_nfn.bench.questions import QUESTIONS
from transformer_nfn.bench.report.scores import comparisons
from transformer_nfn.cli.commands.benchoptions import ExperimentName
from transformer_nfn.jobs import Done

EXAMPLES = small_examples(40)


def changed(**columns: np.ndarray):
    table = EXAMPLES.table
    for name, values in columns.items():
        place = table.column_names.index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values))
    return table


def test_every_answer_lies_between_0_and_1_and_follows_its_columns():
    for question in QUESTIONS.values():
        answer = question.answer(EXAMPLES.table)
        assert ((answer >= 0) & (answer <= 1)).all()
    n = len(EXAMPLES)
    table = changed(
        train_accuracy=np.full(n, 0.9),
        test_accuracy=np.full(n, 0.6),
        noisy_accuracy=np.full(n, 0.2),
        calibration_error=np.full(n, 0.05),
    )
    expected = {"gap": 0.65, "noise": 0.2, "calibration": 0.05, "accuracy": 0.6}
    for name, value in expected.items():
        np.testing.assert_allclose(QUESTIONS[name].answer(table), value)
    adaptive = QUESTIONS["optimizer"].answer(EXAMPLES.table)
    names = EXAMPLES.column("optimizer")
    assert {name: set(adaptive[names == name]) for name in set(names)} == {
        "sgd": {0.0}, "sgdm": {0.0}, "adam": {1.0}, "rmsprop": {1.0},
    }  # fmt: skip
    epochs = QUESTIONS["epoch"].answer(EXAMPLES.table)
    assert [len(set(epochs[EXAMPLES.column("epoch") == e])) for e in (1, 2, 3)] == [1, 1, 1]
    assert np.all(np.diff([epochs[EXAMPLES.column("epoch") == e][0] for e in (1, 2, 3)]) > 0)


def test_what_is_not_known_cannot_be_asked():
    table = changed(train_accuracy=np.full(len(EXAMPLES), np.nan))
    with pytest.raises(BenchError, match="have no train_accuracy"):
        QUESTIONS["gap"].answer(table)


def test_models_learn_the_question_and_not_accuracy():
    train, validation, test = (
        replace(part, question="epoch") for part in three_parts(small_examples(60))
    )
    predictor = FeaturePredictor("hyperparameters", 0)  # which have the epoch
    predictor.fit(train, validation)
    predicted = predictor.predict(test)
    by_epoch = [predicted[test.column("epoch") == epoch] for epoch in (1, 2, 3)]
    assert by_epoch[0].max() < by_epoch[1].min() <= by_epoch[1].max() < by_epoch[2].min()


@pytest.mark.parametrize("kind", HELD_OUT)
def test_what_is_held_out_is_tested_and_nothing_else(kind):
    sides = three_parts(small_examples(80))
    train, validation, test = without(sides, kind)
    if kind == "largest-rates":
        largest = {3e-3}  # of 1e-3, 2e-3 and 3e-3
        rates = [set(side.column("lr").round(6)) for side in (train, validation, test)]
        assert rates == [{1e-3, 2e-3}, {1e-3, 2e-3}, largest]
    else:
        assert kind not in {*train.column("optimizer"), *validation.column("optimizer")}
        assert set(test.column("optimizer")) == {kind}
    assert len(train) + len(validation) + len(test) < sum(map(len, sides))


def test_unknown_names_are_refused(zoo_folder):
    with pytest.raises(BenchError, match="nothing held out is called 'lion'"):
        without(three_parts(EXAMPLES), "lion")
    with pytest.raises(BenchError, match="no question 'age'"):
        prepared(Cell(zoo=zoo_folder, model="statistics", split=0, question="age"))


@pytest.mark.usefixtures("plain_pictures")
def test_both_experiments_are_computed_compared_apart_and_reported(zoo_folder, tmp_path):
    models = ["hyperparameters"]
    cells = [
        cell
        for experiment in ("main", "questions", "held-out")
        for cell in experiment_cells(experiment, zoo_folder, models=models, splits=[0, 1])
    ]
    assert len({cell.name for cell in cells}) == len(cells) == 2 * (1 + 5 + 5)
    assert all(isinstance(one, Done) for one in run(cells, tmp_path))
    finished = finished_cells(tmp_path)
    main = comparisons(finished, models)
    assert [len(one.splits) for one in main] == [2]
    epoch = comparisons(finished, models, question="epoch")[0]
    assert epoch.tau("hyperparameters").mean > 0.8  # it reads the epoch
    assert set(np.round(epoch.accuracy(0), 3)) == {0.111, 0.2, 0.273}
    adam = comparisons(finished, models, held_out="adam")[0]
    assert adam.record["test_rows"] < main[0].record["test_rows"]
    pages = {path.name: path for path in write_report(tmp_path, tmp_path / "page")}
    text = pages["questions.md"].read_text()
    assert "| model | accuracy | gap | calibration | noise | optimizer | epoch |" in text
    # The right order without a tie: of three epochs n rows have n²/3 untied pairs.
    most = next(line for line in text.splitlines() if line.startswith("| *without a mistake"))
    rows = [len(epoch.accuracy(split)) for split in (0, 1)]
    reached = np.mean([np.sqrt(n**2 / 3 / (n * (n - 1) / 2)) for n in rows])
    assert most.split(" | ")[-1] == f"{reached:.3f} |"
    # What the ordinary fit has on the rows of the kind that was held out.
    header, _, row = text.split("| model | all rows | sgd, ")[1].splitlines()[:3]
    assert f" | adam, {len(adam.accuracy(0)) + len(adam.accuracy(1)):,} rows | " in header
    ordinary = []
    for split in (0, 1):
        cell = main[0].first_cell(split)
        kept = np.isin(cell.column("run_id"), adam.first_cell(split).column("run_id"))
        ordinary.append(kendall_tau(cell.column("predicted")[kept], main[0].accuracy(split)[kept]))
    unseen = adam.tau("hyperparameters").mean
    assert f" | {np.mean(ordinary):.3f} → {unseen:.3f} [" in row
    assert "--experiment questions" in text
    assert "--experiment held-out" in text
    plain = [line for line in text.splitlines() if line.startswith("tnfn bench run")]
    assert sum("--experiment" not in line for line in plain) == 2  # for the column accuracy


def test_the_command_line_knows_every_experiment():
    assert get_args(get_args(ExperimentName)[0]) == get_args(Experiment)


def test_only_optimizers_that_a_zoo_has_are_held_out():
    assert kinds_there(EXAMPLES.table) == list(HELD_OUT)
    few = EXAMPLES.take(np.isin(EXAMPLES.column("optimizer").astype(str), ["sgd", "adam"]))
    assert kinds_there(few.table) == ["sgd", "adam", "largest-rates"]
    one = EXAMPLES.take(EXAMPLES.column("optimizer").astype(str) == "adam")
    assert kinds_there(one.table) == ["largest-rates"]
