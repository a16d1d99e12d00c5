"""Every prediction of a report, as files from which it is made again."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench.conftest import write_zoo
from tests.bench.small import small_examples
from tests.bench.test_scores import CELLS, commit, fake
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import CellJob, Finished, run_cell
from transformer_nfn.bench.report.choosing import shown_cells
from transformer_nfn.bench.report.predictions import (
    PREDICTIONS,
    read_predictions,
    write_predictions,
)
from transformer_nfn.bench.report.writing import write_report

#: Three models on three splits, and one cell that could not be moved by the group.
FEW = [cell for cell in CELLS if cell.record["split"] < 3]
STILL = fake("labels-50", 0, 0.2, tau_moved=None)
STILL = Finished(STILL.record, STILL.table.drop_columns(["moved"]))


def texts(home: Path) -> dict[str, str]:
    return {
        path.name: path.read_text("utf-8")
        for path in home.iterdir()
        if path.suffix in (".md", ".json")
    }


def by_place(cells: list[Finished]) -> dict[tuple[str, int], Finished]:
    return {(cell.record["model"], cell.record["split"]): cell for cell in cells}


def test_a_report_is_made_again_from_its_predictions(tmp_path: Path) -> None:
    first, again = tmp_path / "first" / "out", tmp_path / "again"
    commit(FEW, first)
    home = tmp_path / "home" / "out"  # commands name the folder they are made from
    written = write_report(first, home)
    assert home / PREDICTIONS / "mnist-small-independent.parquet" in written
    write_report(home, again)
    assert texts(again) == texts(home)


def test_rows_and_records_come_back_as_they_were(tmp_path: Path) -> None:
    before = [*FEW, STILL, fake("nfn", 0, 0.3, track="shared")]
    paths = write_predictions(before, tmp_path)
    assert len(paths) == 2  # one for each track
    after = read_predictions(tmp_path)
    assert len(after) == len(before)
    shared = [cell for cell in after if cell.record["track"] == "shared"]
    assert [cell.table for cell in shared] == [before[-1].table]
    found = by_place([cell for cell in after if cell.record["track"] == "independent"])
    for place, cell in by_place(before[:-1]).items():
        assert found[place].table == cell.table
        assert found[place].record.items() >= json.loads(json.dumps(cell.record)).items()
    assert "moved" not in found["labels-50", 0].table.column_names


def test_of_equal_sources_the_first_counts(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    commit(FEW, here)
    worse = [fake(m, split, 3.0) for m in ("nfn", "mlp", "lightgbm") for split in range(3)]
    other = [fake("nfn", split, 0.1, track="shared") for split in range(3)]
    write_predictions([*worse, *other], there)
    shown, _ = shown_cells([here, there])
    independent = [cell for cell in shown if cell.record["track"] == "independent"]
    assert sorted(map(tau_and_place, independent)) == sorted(map(tau_and_place, FEW))
    assert len(shown) == len(FEW) + len(other)


def test_cells_of_one_build_add_up_wherever_they_were_computed(tmp_path: Path) -> None:
    """As of two sittings; of another build nothing is added."""
    one, another = {"data": "1" * 64}, {"data": "2" * 64}
    published, here, there = tmp_path / "published", tmp_path / "here", tmp_path / "there"
    write_predictions([fake("nfn", split, 0.1, **one) for split in (0, 1)], published)
    again = [fake("nfn", 1, 3.0, **one), fake("nfn", 1, 3.0, **one, train_runs=75)]
    commit([*again, fake("nfn", 2, 0.1, **one), fake("mlp", 0, 0.1, **one)], here)
    commit([fake("mlp", 1, 0.1, **another), fake("mlp", 2, 0.1, **another)], there)
    shown, left_out = shown_cells([published, here, there])
    found = {(c.record["model"], c.record["split"], c.record["train_runs"]): c for c in shown}
    assert len(found) == len(shown)
    whole = [("mlp", 0, None), *[("nfn", split, None) for split in range(3)]]
    assert found.keys() == {*whole, ("nfn", 1, 75)}
    assert found["nfn", 1, None].record["tau"] > 0.7 > found["nfn", 1, 75].record["tau"]
    assert left_out == ("2 cells are left out that are of another build of their zoo.")


def test_a_build_is_known_by_its_rows_not_by_its_folder(tmp_path: Path) -> None:
    first = write_zoo(tmp_path / "first" / "zoo", small_examples(60))
    copy = write_zoo(tmp_path / "copy" / "zoo", small_examples(60))
    other = write_zoo(tmp_path / "other" / "zoo", small_examples(60, seed=1))
    for number, zoo in enumerate([first, copy, other]):
        cell = Cell(zoo=str(zoo), model="hyperparameters", split=number)
        run_cell(CellJob(cell, cell.name, str(tmp_path / str(number)), "cpu", keep_model=False))
    shown, left_out = shown_cells([tmp_path / str(number) for number in range(3)])
    assert sorted(cell.record["split"] for cell in shown) == [0, 1]
    assert left_out.startswith("1 cells are left out that are of another build")


def tau_and_place(cell: Finished) -> tuple[float, str, int]:
    return cell.record["tau"], cell.record["model"], cell.record["split"]


def test_what_was_published_stays_until_as_much_is_computed_again(tmp_path: Path) -> None:
    """One cell of a new sitting, and any number of cells of older settings, replace nothing."""
    published, here = tmp_path / "published", tmp_path / "here"
    write_predictions(FEW, published)
    older = [fake("mlp", split, 0.1, settings={"older": split}) for split in range(5)] * 2
    commit([fake("nfn", 0, 3.0, data="1" * 64), *older], here)
    shown, left_out = shown_cells([here, published])
    assert len(shown) == len(FEW)
    assert "`mlp` (10)" in left_out
    larger = [fake("nfn", 0, 3.0, zoo_runs=1000)]
    commit(larger, tmp_path / "larger")
    shown, _ = shown_cells([here, published, tmp_path / "larger"])
    assert [cell.record["zoo_runs"] for cell in shown] == [1000]


def test_float32_beside_float64(tmp_path: Path) -> None:
    cell = fake("nfn", 0, 0.1)
    place = cell.table.column_names.index("predicted")
    single = cell.table.set_column(place, "predicted", cell.table["predicted"].cast(pa.float32()))
    write_predictions([Finished(cell.record, single), fake("mlp", 0, 0.1)], tmp_path)
    first, _ = read_predictions(tmp_path)
    assert (first.column("predicted") == single["predicted"].to_numpy()).all()


def rewritten(path: Path, change: object) -> None:
    assert callable(change)
    pq.write_table(change(pq.read_table(path)), path)


def with_records(text: bytes) -> object:
    return lambda table: table.replace_schema_metadata({b"transformer_nfn.bench.records": text})


def without_the_last(table: pa.Table) -> pa.Table:
    records = json.loads(table.schema.metadata[b"transformer_nfn.bench.records"])
    records[-1].pop("tau")
    text = json.dumps(records).encode()
    return table.replace_schema_metadata({b"transformer_nfn.bench.records": text})


def with_last(field: str, value: object) -> object:
    def change(table: pa.Table) -> pa.Table:
        records = json.loads(table.schema.metadata[b"transformer_nfn.bench.records"])
        records[-1][field] = value
        text = json.dumps(records).encode()
        return table.replace_schema_metadata({b"transformer_nfn.bench.records": text})

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.replace_schema_metadata(None),
        lambda table: table.drop_columns(["cell"]),
        lambda table: table.drop_columns(["predicted"]),
        lambda table: table.slice(0, 80),  # records without rows
        lambda table: table.set_column(
            table.column_names.index("cell"), "cell", pa.array(["0"] * len(table))
        ),
        with_records(b"[" * 5000),
        with_records(b"{}"),
        with_records(b"\xff"),
        with_records(b"[7]"),
        without_the_last,
        with_last("data", None),
        with_last("split", -1),
        with_last("split", 5),
        with_last("thresholds", []),
        with_last("parameters", 10**400),
        with_last("zoo", "z" * 300),
        with_last("folder", "zoo`; id`"),
        with_last("folder", "zoo\n"),
        with_last("model", "a|b; id"),
        lambda table: table.set_column(
            table.column_names.index("test_accuracy"), "test_accuracy", pa.array([1.5] * len(table))
        ),
        lambda table: table.set_column(
            table.column_names.index("test_accuracy"),
            "test_accuracy",
            pa.array([float("nan")] * len(table)),
        ),
    ],
)
def test_files_that_are_no_predictions(tmp_path: Path, change: object) -> None:
    (path,) = write_predictions(FEW, tmp_path)
    assert len(read_predictions(tmp_path)) == len(FEW)
    rewritten(path, change)
    with pytest.raises(BenchError, match="does not hold the predictions of a report"):
        read_predictions(tmp_path)


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (path,) = write_predictions(FEW[:1], tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BenchError, match="does not hold the predictions of a report"):
        read_predictions(tmp_path)
