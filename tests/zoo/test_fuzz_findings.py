"""What fuzzing found in zoos, recipes and data."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.safety.fuzzing.folders import zoo_seeds
from benchmarks.safety.fuzzing.mutate import unpack
from tests.zoo.conftest import TINY
from transformer_nfn.zoo import (
    DataError,
    NetShape,
    Recipe,
    RecipeError,
    StoreError,
    summarize,
    verify,
)
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.finished.card import card_text
from transformer_nfn.zoo.format.schema import METADATA_KEY
from transformer_nfn.zoo.tasks.parquet import read_columns

FILES = ("zoo.json", "data/a.parquet", "builds/a.json")


def zoo(home: Path, **other: bytes) -> Path:
    """A sound zoo, with other bytes for some of its files: zoo, shard or log."""
    sound = unpack(zoo_seeds()[0], 4)
    for key, name, content in zip(("zoo", "shard", "log"), FILES, sound, strict=False):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(other.get(key, content))
    return home


def shard(change: Any) -> bytes:
    table = pq.read_table(io.BytesIO(unpack(zoo_seeds()[0], 4)[1]))
    sink = io.BytesIO()
    pq.write_table(change(table), sink)
    return sink.getvalue()


def described(**changes: Any) -> bytes:
    def change(table: pa.Table) -> pa.Table:
        text = json.loads(table.schema.metadata[METADATA_KEY])
        text["net"] |= changes
        return table.replace_schema_metadata({METADATA_KEY: json.dumps(text).encode()})

    return shard(change)


def replaced(name: str, column: pa.Array) -> bytes:
    return shard(lambda table: table.set_column(table.column_names.index(name), name, column))


def use(home: Path) -> None:
    opened = Zoo(home)
    summarize(opened)
    card_text(opened)
    opened.rows()


def test_a_sound_zoo_is_read(tmp_path: Path) -> None:
    use(zoo(tmp_path))


@pytest.mark.parametrize(
    "other",
    [
        {"zoo": b"[" * 5000},
        {"zoo": b'{"format": 2, "recipe": []}'},
        {"zoo": b'{"format": 2, "source": 5}'},
        {"log": b"[" * 5000},
        {"log": b"[1]"},
        {"log": b"\xff\xfe"},
        {"log": b"{}"},
        {"shard": b"PAR1"},
        {"shard": described(blocks=10**9)},  # laid out one by one
        {"shard": described(D=None)},
        {"shard": shard(lambda table: table.replace_schema_metadata({METADATA_KEY: b"[" * 5000}))},
        {"shard": shard(lambda table: table.replace_schema_metadata({METADATA_KEY: b"5"}))},
        {"shard": shard(lambda table: table.drop_columns(["checkpoint"]))},
        {"shard": shard(lambda table: table.append_column("run", table["run"]))},
        {"shard": replaced("test_accuracy", pa.array(["a", "b", "c"]))},
        {"shard": replaced("epoch", pa.nulls(3, pa.int32()))},
        {"shard": replaced("weights", pa.array([[1.0]] * 3, pa.list_(pa.float32())))},
    ],
)
def test_a_zoo_that_is_none(other: dict[str, bytes], tmp_path: Path) -> None:
    home = zoo(tmp_path, **other)
    with pytest.raises(StoreError):
        use(home)


def test_a_recipe_in_a_zoo_that_is_none(tmp_path: Path) -> None:
    home = zoo(tmp_path, zoo=b'{"format": 2, "recipe": {"name": "x"}}')
    with pytest.raises(StoreError, match="no valid recipe"):
        list(verify(Zoo(home)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("patch = 4", "patch = 0"),
        ("lr = [1e-3, 1e-2]", f"lr = {[1e-3 + n * 1e-6 for n in range(100_001)]}"),
        ("blocks = 2", "blocks = 1000000000"),
        ("D = 8", "D = 1000000000000"),
    ],
)
def test_a_recipe_that_asks_too_much(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(TINY.replace(old, new, 1))
    with pytest.raises(RecipeError, match="not valid"):
        Recipe.load(path)


def test_sizes_of_nets_are_bounded() -> None:
    with pytest.raises(ValueError, match="4096"):
        NetShape(tokens=4, inputs=4, blocks=4097)


def test_a_column_twice_in_a_task(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["label", "label"]), path)
    with pytest.raises(DataError, match="twice"):
        read_columns(path, {"label": pa.int64()}, 10)
