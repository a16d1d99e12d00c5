import os
import time
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow as pa
import pytest

from transformer_nfn.jobs import JobError, ShardFolder

TABLE = pa.table({"seed": [3, 1, 2, 5, 4], "loss": pa.array([0.5, None, 1.5, 2.5, 3.5])})
OTHER = pa.table({"seed": [9]})


@pytest.fixture(params=["path", "string", "file://", "memory://"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> ShardFolder:
    path = tmp_path / "new" / "zoo"
    if request.param == "memory://":
        return ShardFolder(f"memory://{uuid4().hex}/zoo")
    return ShardFolder(
        {"path": path, "string": str(path), "file://": f"file://{path}"}[request.param]
    )


def test_a_folder_that_does_not_exist_yet_is_empty(folder: ShardFolder):
    assert folder.names() == set()
    assert folder.leftovers() == []
    assert folder.sweep(0) == 0
    with pytest.raises(FileNotFoundError):
        folder.read("a.parquet")
    with pytest.raises(FileNotFoundError):
        folder.read_bytes("a.json")


def test_a_shard_is_committed_once_and_stays(folder: ShardFolder):
    assert folder.commit("a.parquet", TABLE, row_group_size=2) is True
    first = folder.read_bytes("a.parquet")
    assert folder.commit("a.parquet", OTHER, row_group_size=2) is False
    assert folder.read_bytes("a.parquet") == first
    assert folder.leftovers() == []
    assert folder.names() == {"a.parquet"}
    assert folder.read("a.parquet").equals(TABLE)
    assert folder.read("a.parquet", ["loss"]).column_names == ["loss"]
    metadata = folder.metadata("a.parquet")
    assert [metadata.row_group(i).num_rows for i in range(3)] == [2, 2, 1]
    for column in range(2):
        chunk = metadata.row_group(0).column(column)
        assert chunk.compression == "UNCOMPRESSED"
        assert not chunk.has_dictionary_page
    with folder.open("a.parquet") as file:
        assert file.read(4) == b"PAR1"


def test_sidecars_are_no_shards(folder: ShardFolder):
    folder.commit("a.parquet", TABLE, row_group_size=2)
    assert folder.write_once("zoo.json", b"one") is True
    assert folder.write_once("zoo.json", b"two") is False
    assert folder.read_bytes("zoo.json") == b"one"
    folder.replace("CARD.md", b"old, and longer")
    folder.replace("CARD.md", b"new")
    assert folder.read_bytes("CARD.md") == b"new"
    assert folder.names() == {"a.parquet"}
    assert folder.leftovers() == []


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".a.parquet", "_a.parquet", "a/b.parquet", "../a.parquet"),
        *(
            "/a.parquet",
            "a\\b.parquet",
            "a.parquet\n",
            "ä.parquet",
            "_tmp/a.parquet",
            "a b.parquet",
        ),
    ],
)
def test_bad_names_are_refused(folder: ShardFolder, name: str):
    with pytest.raises(JobError):
        folder.commit(name, TABLE, row_group_size=2)
    for call in (folder.read, folder.metadata, folder.read_bytes):
        with pytest.raises(JobError):
            call(name)
    with pytest.raises(JobError):
        folder.write_once(name, b"")
    with pytest.raises(JobError):
        folder.replace(name, b"")
    assert folder.names() == set()


def test_shards_and_sidecars_keep_to_their_suffix(folder: ShardFolder):
    with pytest.raises(JobError, match=r"ends in \.parquet"):
        folder.commit("a.json", TABLE, row_group_size=2)
    with pytest.raises(JobError, match="by commit alone"):
        folder.write_once("a.parquet", b"")
    with pytest.raises(JobError, match="by commit alone"):
        folder.replace("a.parquet", b"")


def test_only_files_directly_in_the_folder_are_shards(tmp_path: Path):
    folder = ShardFolder(tmp_path)
    folder.commit("a.parquet", TABLE, row_group_size=2)
    (tmp_path / "_tmp" / "b.parquet").write_bytes(b"half")
    (tmp_path / "_b.parquet").write_bytes(b"")
    (tmp_path / "sub.parquet").mkdir()
    (tmp_path / "sub.parquet" / "c.parquet").write_bytes(b"")
    assert folder.names() == {"a.parquet"}
    memory = ShardFolder(f"memory://{uuid4().hex}")
    memory.commit("a.parquet", TABLE, row_group_size=2)
    memory._store.fs.pipe_file(f"{memory._path}/sub/c.parquet", b"")
    assert memory.names() == {"a.parquet"}


def test_equal_tables_give_equal_bytes(tmp_path: Path):
    rows = 5000
    whole = pa.table(
        {
            "x": pa.array([None if i % 7 == 0 else i / 3 for i in range(rows)]),
            "name": pa.array([f"net-{i}" for i in range(rows)]),
            "weights": pa.array([[i / 2, None, -i] for i in range(rows)], pa.list_(pa.float32())),
        }
    )
    chunked = pa.concat_tables([whole.slice(0, 13), whole.slice(13, 1700), whole.slice(1713)])
    shifted = pa.concat_tables([whole.slice(0, 9), whole]).combine_chunks().slice(9)
    assert chunked.column(0).num_chunks == 3
    folder = ShardFolder(tmp_path)
    tables = {"a": whole, "b": chunked, "c": shifted}
    for name, table in tables.items():
        assert table.equals(whole)
        folder.commit(f"{name}.parquet", table, row_group_size=2000)
    first, *others = [folder.read_bytes(f"{name}.parquet") for name in tables]
    assert all(other == first for other in others)
    memory = ShardFolder(f"memory://{uuid4().hex}")
    memory.commit("a.parquet", whole, row_group_size=2000)
    assert memory.read_bytes("a.parquet") == first


def test_sweep_removes_only_what_is_old(tmp_path: Path):
    folder = ShardFolder(tmp_path)
    folder.commit("a.parquet", TABLE, row_group_size=2)
    old, new = tmp_path / "_tmp" / "b.parquet.1", tmp_path / "_tmp" / "b.parquet.2"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    assert folder.leftovers() == ["_tmp/b.parquet.1", "_tmp/b.parquet.2"]
    assert folder.sweep(3600) == 1
    assert folder.leftovers() == ["_tmp/b.parquet.2"]
    assert folder.names() == {"a.parquet"}


def test_unsafe_file_systems_are_read_only(tmp_path: Path):
    local = ShardFolder(tmp_path)
    local.commit("a.parquet", TABLE, row_group_size=2)
    # A cache drops `mode` and would overwrite.
    cached = ShardFolder(f"simplecache::file://{tmp_path}")
    assert cached.names() == {"a.parquet"}
    assert cached.read("a.parquet").equals(TABLE)
    for write in (
        lambda: cached.commit("a.parquet", OTHER, row_group_size=2),
        lambda: cached.write_once("a.json", b""),
        lambda: cached.replace("a.json", b""),
    ):
        with pytest.raises(JobError, match="can be read but not written"):
            write()
    assert local.names() == {"a.parquet"}


def test_an_old_file_system_that_ignores_the_mode_is_refused(monkeypatch: pytest.MonkeyPatch):
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "pipe_file", lambda self, path, value, **kwargs: None)
    with pytest.raises(JobError, match="can be read but not written"):
        ShardFolder("memory://old").commit("a.parquet", TABLE, row_group_size=2)


def test_a_relative_folder_is_fixed_when_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    folder = ShardFolder("zoo")
    monkeypatch.chdir("/")
    folder.commit("a.parquet", TABLE, row_group_size=2)
    assert (tmp_path / "zoo" / "a.parquet").is_file()
    assert str(tmp_path / "zoo") in repr(folder)


def test_other_writers_are_seen():
    url = f"memory://{uuid4().hex}"
    one, two = ShardFolder(url), ShardFolder(f"{url}/")
    assert one.names() == set()
    two.commit("a.parquet", TABLE, row_group_size=2)
    assert one.names() == {"a.parquet"}
