"""A zoo for the hub: its splits are those of the benchmark, and nothing is lost."""

import json

import pyarrow.parquet as pq
import pytest
import yaml

from tests.zoo.conftest import built, shard_bytes
from transformer_nfn.bench.protocol.splits import SPLITS
from transformer_nfn.zoo import StoreError, publish
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.finished import publishing
from transformer_nfn.zoo.finished.publishing import FOLDS


def test_the_splits_are_those_of_the_benchmarks_first():
    assert SPLITS[0]._asdict() == FOLDS


def test_all_rows_are_there_once_and_on_their_side(tiny_zoo, tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "ROWS", 4)
    written = publish(tiny_zoo, tmp_path / "hub")
    assert written[-4:] == ["zoo.json", "README.md", "accuracy.png", "layout.json"]
    copy = Zoo(tmp_path / "hub")
    assert copy.table().equals(tiny_zoo.table())
    assert copy.rows().table.equals(tiny_zoo.rows().table)
    matter = yaml.safe_load((tmp_path / "hub" / "README.md").read_text().split("---\n")[1])
    files = matter["configs"][0]["data_files"]
    assert {one["split"] for one in files} <= {"train", "validation", "test"}
    for one in files:
        for path in (tmp_path / "hub").glob(one["path"]):
            table = pq.read_table(path)
            assert 0 < len(table) <= 4
            folds = FOLDS.get(one["split"], range(3, 10))
            assert set(table.column("fold").to_pylist()) <= set(folds)
    layout = json.loads((tmp_path / "hub" / "layout.json").read_text())
    assert {n: (v["offset"], tuple(v["shape"])) for n, v in layout.items()} == copy.shape.stored
    # The same again changes nothing.
    data = tmp_path / "hub" / "data"
    before = {path: path.read_bytes() for path in data.glob("*.parquet")}
    assert publish(tiny_zoo, tmp_path / "hub") == written
    assert {path: path.read_bytes() for path in data.glob("*.parquet")} == before


def test_a_copy_of_a_zoo_that_has_grown_since_is_refused(tiny_recipe, tmp_path):
    publish(built(tiny_recipe, tmp_path / "zoo", runs=4), tmp_path / "hub")
    grown = built(tiny_recipe, tmp_path / "zoo", runs=8)
    with pytest.raises(StoreError, match="when the zoo had other rows"):
        publish(grown, tmp_path / "hub")


def test_another_folder_is_not_touched(tiny_zoo, tiny_recipe, tmp_path):
    with pytest.raises(StoreError, match="the zoo itself"):
        publish(tiny_zoo, tiny_zoo.url)
    other = built(tiny_recipe.with_seeds("shared"), tmp_path / "other", runs=2)
    before = shard_bytes(other)
    with pytest.raises(StoreError, match="holds something else"):
        publish(tiny_zoo, other.url)
    assert shard_bytes(other) == before


def test_the_card_says_which_data(tiny_zoo, tmp_path):
    publish(tiny_zoo, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| data | the 1,797 digits of scikit-learn (UCI, CC BY 4.0) |" in text
    assert "| examples | 1,097 train, 300 validation, 400 test |" in text
    assert f"| SHA-256 of the data | `{tiny_zoo.recipe.data}` |" in text
