"""Others read a zoo as well: what they see is what pyarrow sees."""

from math import fsum
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_nfn.zoo import write_card
from transformer_nfn.zoo.dataset import Zoo

RUN, CHECKPOINT = 3, "best"


class Seen(NamedTuple):
    """What a reader says of a zoo."""

    rows: int
    with_weights: int
    mean_accuracy: float
    weights: list[float]  # of one row


def check(seen: Seen, expected: Seen) -> None:
    assert (seen.rows, seen.with_weights) == (expected.rows, expected.with_weights)
    assert seen.mean_accuracy == pytest.approx(expected.mean_accuracy, rel=1e-12)
    np.testing.assert_array_equal(
        np.array(seen.weights, dtype=np.float32), np.array(expected.weights, dtype=np.float32)
    )


def of_rows(rows: list[dict[str, object]]) -> Seen:
    accuracies = [row["test_accuracy"] for row in rows if row["test_accuracy"] is not None]
    (one,) = (row for row in rows if (row["run"], row["checkpoint"]) == (RUN, CHECKPOINT))
    return Seen(
        len(rows),
        sum(row["weights"] is not None for row in rows),
        fsum(accuracies) / len(accuracies),
        list(one["weights"]),
    )


@pytest.fixture(scope="module")
def expected(tiny_zoo: Zoo) -> Seen:
    files = sorted(Path(tiny_zoo.shards.url).glob("*.parquet"))
    seen = of_rows(pa.concat_tables(pq.read_table(file) for file in files).to_pylist())
    assert (seen.rows, seen.with_weights, len(seen.weights)) == (30, 27, 1690)
    return seen


def test_the_check_notices_another_weight_and_another_mean(expected):
    changed = [*expected.weights[:-1], expected.weights[-1] + 1e-3]
    for other in (
        expected._replace(weights=changed),
        expected._replace(mean_accuracy=expected.mean_accuracy + 1e-6),
        expected._replace(with_weights=30),
    ):
        with pytest.raises(AssertionError):
            check(other, expected)


def test_duckdb_reads_a_zoo(tiny_zoo, expected):
    duckdb = pytest.importorskip("duckdb")
    files = f"{tiny_zoo.shards.url}/*.parquet"
    with duckdb.connect() as connection:
        ((rows, with_weights, mean),) = connection.execute(
            "select count(*), count(weights), avg(test_accuracy) from read_parquet(?)", [files]
        ).fetchall()
        ((weights,),) = connection.execute(
            "select weights from read_parquet(?) where run = ? and checkpoint = ?",
            [files, RUN, CHECKPOINT],
        ).fetchall()
    check(Seen(rows, with_weights, mean, list(weights)), expected)


def test_polars_reads_a_zoo(tiny_zoo, expected):
    polars = pytest.importorskip("polars")
    frame = polars.read_parquet(f"{tiny_zoo.shards.url}/*.parquet")
    one = frame.filter((polars.col("run") == RUN) & (polars.col("checkpoint") == CHECKPOINT))
    weights = frame["weights"]
    assert weights.dtype == polars.Array(polars.Float32, len(expected.weights))
    (row,) = one["weights"].to_list()
    check(
        Seen(len(frame), len(frame) - weights.null_count(), frame["test_accuracy"].mean(), row),
        expected,
    )


def test_hugging_face_datasets_reads_a_zoo_by_its_card(own_zoo, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    datasets = pytest.importorskip("datasets")
    write_card(own_zoo)  # its front matter says which files are the data
    # Not data: read by nobody who follows the card.
    pq.write_table(pa.table({"x": [1]}), Path(own_zoo.url) / "other.parquet")
    loaded = datasets.load_dataset(own_zoo.url, cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    check(of_rows(loaded["train"].to_list()), expected)
