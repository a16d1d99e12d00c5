"""Predictions from any program: checked against the split's rows, scored, kept, shown."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tests.bench.conftest import without_pictures
from tests.bench.test_cells import run
from tests.cli.run import tnfn
from transformer_nfn.bench import (
    MODELS,
    BenchError,
    estimate_seconds,
    experiment_cells,
    keep_outside,
    kendall_tau,
    load_examples,
    outside_cell,
    read_predictions,
    sides_table,
    standing,
    write_report,
)
from transformer_nfn.bench.models.kind import TIERS
from transformer_nfn.bench.protocol.computing import finished_cells
from transformer_nfn.bench.protocol.loading import divide
from transformer_nfn.cli.commands.benchoutside import score


def made(zoo: str, split: int = 0, seed: int = 0) -> pa.Table:
    """A table of predictions as an outsider makes it: in another order, by the weights' size."""
    sides = sides_table(zoo, split, "epochs", None)
    test = sides.filter(pc.equal(sides["side"], "test"))
    tested = divide(zoo, load_examples(zoo, "epochs", None), split).test
    sizes = tested.weights.double().square().mean(1).numpy()
    table = test.select(["run_id", "checkpoint"]).append_column("predicted", pa.array(sizes))
    return table.take(np.random.default_rng(seed).permutation(len(table)))


@pytest.fixture
def mine(zoo_folder: str, tmp_path: Path) -> Path:
    pq.write_table(made(zoo_folder), tmp_path / "mine.parquet")
    return tmp_path / "mine.parquet"


def cell_of(path: Path, zoo: str, split: int = 0, name: str = "mine", **options: Any) -> Any:
    options.setdefault("tier", "weights")
    return outside_cell(read_predictions(path), zoo, split, name=name, **options)


def test_sides_are_those_of_the_splits_and_hide_the_accuracies_of_test_rows(zoo_folder):
    divided = divide(zoo_folder, load_examples(zoo_folder, "epochs", None), 3)
    sides = sides_table(zoo_folder, 3, "epochs", None)
    for side, examples in (
        ("train", divided.train),
        ("validation", divided.validation),
        ("test", divided.test),
    ):
        rows = sides.filter(pc.equal(sides["side"], side))
        for name in ("run", "run_id", "checkpoint", "epoch"):
            assert rows[name].to_pylist() == examples.table[name].to_pylist()
        hidden = side == "test"
        expected = [None] * len(rows) if hidden else examples.table["test_accuracy"].to_pylist()
        assert rows["test_accuracy"].to_pylist() == expected
    with pytest.raises(BenchError, match="0 to 4"):
        sides_table(zoo_folder, 5, "epochs", None)


def test_rows_in_any_order_get_the_tau_of_the_same_predictions(mine, zoo_folder):
    cell = cell_of(mine, zoo_folder)
    test = divide(zoo_folder, load_examples(zoo_folder, "epochs", None), 0).test
    sizes = test.weights.double().square().mean(1).numpy()
    assert cell.record["tau"] == kendall_tau(sizes, test.accuracy) > 0.8
    assert np.array_equal(cell.column("predicted"), sizes)
    assert cell.table["run_id"].to_pylist() == test.table["run_id"].to_pylist()


@pytest.mark.parametrize("kind", ["large strings", "integers", "dictionary", "csv", "float32"])
def test_other_spellings_of_the_same_table(kind, mine, zoo_folder, tmp_path):
    table = pq.read_table(mine)
    path = tmp_path / f"other.{'csv' if kind == 'csv' else 'parquet'}"
    if kind == "csv":
        pa_csv.write_csv(table, path)
    else:
        column, kinds = "checkpoint", {"large strings": pa.large_string(), "integers": pa.int32()}
        kinds["dictionary"] = pa.dictionary(pa.int32(), pa.string())
        kinds["float32"] = pa.float32()
        column = "predicted" if kind == "float32" else "checkpoint"
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, table[column].cast(kinds[kind])), path)
    tau = cell_of(path, zoo_folder).record["tau"]
    assert tau == pytest.approx(cell_of(mine, zoo_folder).record["tau"], abs=1e-9)


def test_rows_that_are_missing_surplus_or_twice_are_counted_and_named(mine, zoo_folder, tmp_path):
    table = pq.read_table(mine)
    sides = sides_table(zoo_folder, 0, "epochs", None)
    train = sides.filter(pc.equal(sides["side"], "train")).slice(0, 2)
    learned = train.select(["run_id", "checkpoint"]).append_column(
        "predicted", pa.array([0.1, 0.2])
    )
    foreign = pa.table({"run_id": ["nobody"], "checkpoint": ["3"], "predicted": [0.5]})
    first = table.slice(0, 1)
    gone = first["run_id"][0].as_py()
    parts = [table.slice(1), table.slice(4, 3), learned, foreign]
    bad = pa.concat_tables(parts, promote_options="permissive")
    pq.write_table(bad, tmp_path / "bad.parquet")
    with pytest.raises(BenchError) as error:
        cell_of(tmp_path / "bad.parquet", zoo_folder)
    said = str(error.value)
    assert f"1 of the {len(table)} test rows are missing (run_id '{gone}'" in said
    assert "2 are rows to train or validate on" in said
    assert "1 are no rows of the zoo (run_id 'nobody', checkpoint '3')" in said
    assert "3 are there more than once" in said
    assert "\n" not in said
    with pytest.raises(BenchError, match=r"split 1: .* test rows are missing"):
        cell_of(mine, zoo_folder, split=1)


def damaged(table: pa.Table, how: str, path: Path) -> Path:
    n = len(table)
    predicted = table["predicted"].to_numpy().copy()
    if how in ("nan", "inf"):
        predicted[2] = float(how)
        table = table.set_column(2, "predicted", pa.array(predicted))
    elif how == "null":
        table = table.set_column(2, "predicted", pa.array([None, *predicted[1:]], pa.float64()))
    elif how == "no column":
        table = table.drop_columns(["checkpoint"])
    elif how == "text":
        table = table.set_column(2, "predicted", pa.array(["1"] * n))
    elif how == "list":
        table = table.set_column(0, "run_id", pa.array([["a"]] * n))
    elif how == "long":
        table = table.set_column(0, "run_id", pa.array(["x" * 300] * n))
    elif how == "huge":
        # A few kilobytes that would be 30 GB as plain text.
        table = table.set_column(0, "run_id", pa.array(["x" * 10**6] * n).dictionary_encode())
    elif how == "twice":
        table = pa.Table.from_arrays(
            [*table.columns, table["predicted"]], [*table.column_names, "predicted"]
        )
    pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("nan", "1 of 36 predictions are no finite number, such as that of run_id"),
        ("inf", "1 of 36 predictions are no finite number"),
        ("null", "predicted has 1 nulls"),
        ("no column", "the column checkpoint is not there"),
        ("text", "predicted is string, it should be numbers"),
        ("list", "run_id is list"),
        ("long", "a name has 300 bytes"),
        ("huge", "a name has 1,000,000 bytes"),
        ("twice", "the column predicted is twice there"),
    ],
)
def test_a_table_that_is_none_is_refused(how, says, mine, zoo_folder, tmp_path):
    path = damaged(pq.read_table(mine), how, tmp_path / "bad.parquet")
    with pytest.raises(BenchError, match=says):
        cell_of(path, zoo_folder)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("run_id,checkpoint\na,1\n", "has no column predicted"),
        ("run_id,checkpoint,predicted,predicted\na,1,2,3\n", "the column predicted twice"),
        ("run_id,checkpoint,predicted\na,1\n", "line 2: 2 fields"),
        ("run_id,checkpoint,predicted\na,1,much\n", "no finite number"),
        ("run_id,checkpoint,predicted\na,1,nan\n", "no finite number"),
        ('run_id,checkpoint,predicted\n"a,1,nan\n', "no CSV file"),
        ("run_id,checkpoint,predicted\n\xff", "no rows|fields"),
        ("", "has no column run_id"),
    ],
)
def test_a_csv_that_is_none_is_refused(text, says, zoo_folder, tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BenchError, match=says):
        cell_of(path, zoo_folder)


def test_files_that_are_too_large_or_none(tmp_path, monkeypatch):
    with pytest.raises(BenchError, match=r"should end in .parquet or .csv"):
        read_predictions(tmp_path / "mine.txt")
    (tmp_path / "noise.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(BenchError, match="not sound"):
        read_predictions(tmp_path / "noise.parquet")
    with (tmp_path / "large.parquet").open("wb") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(BenchError, match="at most 67,108,864"):
        read_predictions(tmp_path / "large.parquet")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(BenchError, match="is no file"):
        read_predictions(tmp_path / "folder.csv")


@pytest.mark.parametrize("name", ["nfn", "My model", "x" * 61, "../up"])
def test_names_that_are_taken_or_none(name, mine, zoo_folder):
    with pytest.raises(BenchError, match="name"):
        cell_of(mine, zoo_folder, name=name)


@pytest.fixture(scope="module")
def computed(zoo_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bench")
    models = ["statistics", "hyperparameters"]
    run(experiment_cells("main", zoo_folder, models=models, splits=[0, 1]), out)
    return out


def test_it_stands_in_its_tier_and_in_the_report(mine, zoo_folder, computed, tmp_path):
    out = tmp_path / "bench"
    shutil.copytree(computed, out)
    cell = cell_of(mine, zoo_folder)
    assert {one.model for one in standing(cell, finished_cells(out))} == {"mine", "statistics"}
    assert [one.model for one in standing(cell, [])] == ["mine"]
    other = cell_of(mine, zoo_folder, tier="hyperparameters")
    assert {one.model for one in standing(other, finished_cells(out))} == {
        "mine",
        "hyperparameters",
    }
    assert "mine" not in MODELS
    path = keep_outside(cell, out)
    assert keep_outside(cell, out) == path  # the same again
    pq.write_table(
        pq.read_table(mine).set_column(2, "predicted", pa.array(np.arange(36.0))),
        tmp_path / "other.parquet",
    )
    with pytest.raises(BenchError, match="holds other predictions of mine for split 0"):
        keep_outside(cell_of(tmp_path / "other.parquet", zoo_folder), out)

    def page() -> str:
        write_report(out, tmp_path / "report")
        pages = sorted((tmp_path / "report").glob("*.md"))
        return "\n".join(one.read_text(encoding="utf-8") for one in pages)

    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)  # of the others alone
        text = page()  # the others have two splits, and keep both
    assert "Predictions of `mine` from outside are left out: those for split 1 are missing" in text
    assert "2 splits" in text
    pq.write_table(made(zoo_folder, 1), tmp_path / "second.parquet")
    keep_outside(cell_of(tmp_path / "second.parquet", zoo_folder, 1), out)
    text = page()
    assert "|mine (from outside)|" in text  # at a glance
    assert "left out" not in text
    moved = [line for line in text.splitlines() if line.startswith("| mine (from outside) | 0.")]
    assert any(line.endswith(" |  |  |  |  |") for line in moved)  # under the group: empty
    assert "tnfn bench score mine-SPLIT.parquet" in text
    results = json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8"))
    found = {one["split"]: one for one in results["records"] if one["model"] == "mine"}
    assert set(found) == {0, 1}
    assert found[0]["tau_moved"] is None
    assert "mine" not in MODELS
    cells = experiment_cells("main", zoo_folder, models=["statistics"], splits=[0])
    assert estimate_seconds(cells, out)[cells[0]] > 0


def test_a_report_of_nothing_else(mine, zoo_folder, tmp_path):
    keep_outside(cell_of(mine, zoo_folder), tmp_path / "bench")
    write_report(tmp_path / "bench", tmp_path / "report")
    pages = sorted((tmp_path / "report").glob("*.md"))
    text = "\n".join(one.read_text(encoding="utf-8") for one in pages)
    assert "mine (from outside)" in text
    assert "Under the group" not in text


def test_a_registered_model_of_the_same_name_wins(mine, zoo_folder, tmp_path, monkeypatch):
    keep_outside(cell_of(mine, zoo_folder), tmp_path)
    monkeypatch.setitem(MODELS, "mine", replace(MODELS["statistics"], origin="own"))
    assert finished_cells(tmp_path) == []
    with pytest.raises(BenchError, match="registered here"):
        cell_of(mine, zoo_folder)


def test_commands_from_rows_to_a_report(zoo_folder, computed, tmp_path, capsys):
    for ending in ("parquet", "csv"):
        ended = tnfn(
            capsys, "bench", "rows", zoo_folder, "--out", tmp_path / f"r.{ending}", "--json"
        )
        assert json.loads(ended.out)["test"] == 36
    listed = pa_csv.read_csv(tmp_path / "r.csv")
    assert listed["side"].to_pylist() == pq.read_table(tmp_path / "r.parquet")["side"].to_pylist()
    pa_csv.write_csv(made(zoo_folder), tmp_path / "size.csv")
    words = ["bench", "score", tmp_path / "size.csv", "--zoo", zoo_folder, "--out", computed]
    ended = tnfn(capsys, *words)
    assert ended.code == 0
    assert "size (from outside)" in ended.out
    assert "Statistics" in ended.out
    found = json.loads(tnfn(capsys, *words, "--json").out)
    assert found["of"] == 2
    assert found["name"] == "size"
    assert found["interval"][0] <= found["tau"] <= found["interval"][1]
    assert Path(found["cell"]).is_file()
    alone = json.loads(tnfn(capsys, *words[:5], "--json").out)
    assert alone["tau"] == found["tau"]
    assert (alone["place"], alone["of"], alone["cell"]) == (1, 1, None)


def test_only_cells_that_ask_the_same_of_the_same_rows_are_rivals(mine, zoo_folder, computed):
    cell = cell_of(mine, zoo_folder)
    first = next(
        one
        for one in finished_cells(computed)
        if (one.record["model"], one.record["split"]) == ("statistics", 0)
    )
    assert len(standing(cell, [first])) == 2
    changes = [{"question": "loss"}, {"held_out": "sgd"}, {"threshold": 0.5}, {"split": 1}]
    for change in changes:
        other = first._replace(record={**first.record, **change})
        assert len(standing(cell, [other])) == 1, change
    shorter = first._replace(table=first.table.slice(1))
    assert len(standing(cell, [shorter])) == 1


def test_a_model_stands_in_one_tier(mine, zoo_folder, tmp_path):
    keep_outside(cell_of(mine, zoo_folder, tier="labels"), tmp_path / "bench")
    pq.write_table(made(zoo_folder, split=1), tmp_path / "other.parquet")
    other = cell_of(tmp_path / "other.parquet", zoo_folder, split=1, tier="weights")
    with pytest.raises(BenchError, match="were given labels: choose the same --tier"):
        keep_outside(other, tmp_path / "bench")


def test_the_command_knows_every_tier():
    # It spells them again, so that `--help` does not import the benchmark.
    tier = get_type_hints(score)["tier"]
    assert get_args(tier) == tuple(TIERS)
