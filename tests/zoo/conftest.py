"""A tiny zoo, and what tests do to copies of it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_nfn.jobs import InProcess, ShardFolder
from transformer_nfn.zoo import Build, Recipe
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.format.schema import ROW_GROUP, row_digest

#: 34 runs of four kinds, trained in a moment. The seed of the order is chosen such that the first
#: run is one of the two that diverge, and that one kind among the first ten fills two groups.
TINY = """
name = "tiny"
description = "A zoo for tests."
task = "digits"
patch = 4
D = 8
heads = 2
D_A = 12
blocks = 2
seed = 1
runs = 10
group = 3
lockstep = 2

[training]
batch = 32
epochs = 2
checkpoints = [1, 2]
warmup = 0.5
schedule = "step"
train_examples = 96
validation_examples = 32
test_examples = 32

[[families]]
optimizer = ["sgdm", "adam"]
lr = [1e-3, 1e-2]
l2 = [1e-8, 1e-4]
dropout = [0.0, 0.1]
init_std = [0.2]
train_fraction = [1.0, 0.7]

[[families]]
optimizer = ["sgdm"]
lr = [1e30]
l2 = [1.0]
dropout = [0.0, 0.1]
init_std = [0.2]
train_fraction = [1.0]
"""


def write_tiny(folder: Path, *changes: tuple[str, str]) -> Path:
    """The tiny recipe as a file, with some of its lines changed."""
    text = TINY
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is in the recipe {text.count(old)} times"
        text = text.replace(old, new)
    path = folder / "tiny.toml"
    path.write_text(text, encoding="utf-8")
    return path


def built(recipe: Recipe, url: str | Path, runs: int | None = None) -> Zoo:
    """Build in this process; no group may fail."""
    assert Build(recipe, url, runs=runs).run(InProcess()) == []
    return Zoo(url)


def plant(
    zoo: Zoo, name: str, change: Callable[[list[dict[str, Any]]], object], *, sign: bool = False
) -> None:
    """Change the rows of a shard and write it as shards are written: a planted fault.

    With `sign` the checksums are made right again, so that something else has to find the fault.
    """
    path = Path(zoo.shards.url) / name
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    for row in rows if sign else ():
        weights = row["weights"]
        row["digest"] = row_digest(
            row, None if weights is None else np.array(weights, dtype=np.float32)
        )
    pq.write_table(
        pa.Table.from_pylist(rows, schema=table.schema),
        path,
        row_group_size=ROW_GROUP,
        use_dictionary=False,
        compression="none",
        store_schema=True,
    )


def digests(zoo: Zoo) -> dict[tuple[int, str], str]:
    rows = zoo.table(columns=["run", "checkpoint", "digest"]).to_pylist()
    return {(row["run"], row["checkpoint"]): row["digest"] for row in rows}


def shard_bytes(zoo: Zoo) -> dict[str, bytes]:
    return {name: zoo.shards.read_bytes(name) for name in zoo.names()}


def logs(url: str | Path) -> list[dict[str, object]]:
    folder = ShardFolder(f"{url}/builds")
    return [json.loads(folder.read_bytes(name)) for name in sorted(folder.sidecars())]


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return Recipe.load(write_tiny(tmp_path_factory.mktemp("recipe")))


@pytest.fixture(scope="session")
def tiny_zoo(tiny_recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    """The tiny zoo, only to be read: 30 rows, 3 of them diverged, in 5 shards."""
    return built(tiny_recipe, tmp_path_factory.mktemp("zoos") / "tiny")


@pytest.fixture
def own_zoo(tiny_zoo: Zoo, tmp_path: Path) -> Zoo:
    """A copy of the tiny zoo that a test may change."""
    return Zoo(shutil.copytree(tiny_zoo.url, tmp_path / "own"))
