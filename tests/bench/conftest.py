"""A small zoo on disk whose networks were never trained: its accuracies are made up."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.small import small_examples
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.report import pictures
from transformer_nfn.jobs import ShardFolder
from transformer_nfn.zoo.format.schema import COLUMNS, FORMAT, ROW_GROUP, row_digest, zoo_table


def write_zoo(folder: Path, examples: Examples, *, seeds: str = "run", name: str = "small") -> Path:
    """Examples as a zoo: one shard, and a zoo.json that says how runs were seeded."""
    rows = examples.table.to_pylist()
    weights = list(examples.weights.float().numpy())
    for row, one in zip(rows, weights, strict=True):
        row["digest"] = row_digest(row, one)
    fields = [{key: row[key] for key in COLUMNS if key != "digest"} for row in rows]
    table = zoo_table(examples.shape, fields, weights)
    ShardFolder(folder / "data").commit("rows.parquet", table, row_group_size=ROW_GROUP)
    described = {"format": FORMAT, "recipe": {"name": name, "seeds": seeds}}
    (folder / "zoo.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of zoos and saved models go into a folder of the tests."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    patch.setenv("TNFN_MODELS", str(tmp_path_factory.mktemp("models")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def zoo_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 runs of three epochs; only to be read."""
    return str(write_zoo(tmp_path_factory.mktemp("zoos") / "small", small_examples(60)))


@pytest.fixture
def plain_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without pictures, of which each takes a second or so."""
    without_pictures(monkeypatch)


def without_pictures(patch: pytest.MonkeyPatch) -> None:
    """Do not draw them as long as the patch holds."""
    for name in pictures.__all__:
        patch.setattr(pictures, name, lambda *_, **__: b"a picture")
