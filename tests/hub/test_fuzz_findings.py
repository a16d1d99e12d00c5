"""What fuzzing found in manifests and folders of results, and what a manifest may not name."""

import io
import json
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.safety.fuzzing.folders import result_seeds
from benchmarks.safety.fuzzing.mutate import unpack
from transformer_nfn.hub import HubError, Results, stored_index
from transformer_nfn.hub.manifests import read_manifest


def parquet(**columns: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def twice() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["path", "path"]), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".jsonl", b"null"),  # a crash of Arrow's reader
        (".jsonl", b"[1]"),
        (".jsonl", b"\x99"),
        (".jsonl", b"[" * 5000),
        (".jsonl", b'{"path": 1}'),
        (".jsonl", b'{"path": "\\ud800"}'),
        (".jsonl", b'{"path": "a", "size": 99999999999999999999}'),
        (".csv", b"path\xdb\na"),
        (".csv", b"path,size,version\na,\xf0\x9f\x98\x80,1"),
        (".csv", b"path,path\na,b"),
        (".parquet", twice()),
        (".parquet", parquet(path=[["a"]])),
        (".parquet", parquet(path=["a"], size=["x"], version=["1"])),
        (".parquet", parquet(path=["a"], size=[{"a": 1}], version=["1"])),
        (".parquet", parquet(path=[b"\xff"])),
    ],
)
def test_a_manifest_that_is_none(ending: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"m{ending}"
    path.write_bytes(content)
    with pytest.raises(HubError, match="no manifest that can be read"):
        read_manifest(str(path))


def test_json_lines_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"path": "a", "size": 3, "version": "x"}\n\n{"path": "/b", "more": [1]}\n')
    paths, sizes, versions = read_manifest(str(path))
    assert paths.to_pylist() == [str(tmp_path / "a"), "/b"]
    assert (sizes.to_pylist(), versions.to_pylist()) == ([3, 0], ["x", ""])


def test_few_bytes_that_hold_long_text_are_refused(tmp_path: Path) -> None:
    """One path of a megabyte, a thousand times, is a megabyte in the file."""
    path = tmp_path / "m.parquet"
    long = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(3000, np.int32)), pa.array(["x" * 10**6])
    )
    pq.write_table(pa.table({"path": long}), path)
    assert path.stat().st_size < 10**6
    with pytest.raises(HubError, match="longer text"):
        read_manifest(str(path))


@pytest.mark.parametrize(
    "named",
    [
        "simplecache::https://host/a.safetensors",
        "zip://a.safetensors::/tmp/b.zip",
        "ssh://host/a.safetensors",
        "reference://a",
        "/folder::/a",
    ],
)
def test_a_manifest_names_only_what_reads(named: str, tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(f"s3://bucket/a.safetensors\nfile:///a\n/b\nc\n{named}\n")
    with pytest.raises(HubError, match="a manifest may name"):
        read_manifest(str(path))
    path.write_text("s3://bucket/a.safetensors\nfile:///a\n/b\nc\n")
    assert len(read_manifest(str(path))[0]) == 4


@pytest.mark.parametrize("named", ["/etc/passwd", "file:///etc/passwd"])
def test_a_manifest_from_elsewhere_names_no_local_files(named: str) -> None:
    with fsspec.open("memory://fuzz/m.txt", "wb") as file:
        file.write(b"a.safetensors\nhttps://host/b.safetensors\n")
    found = read_manifest("memory://fuzz/m.txt")[0].to_pylist()
    assert found == ["memory://fuzz/a.safetensors", "https://host/b.safetensors"]
    with fsspec.open("memory://fuzz/m.txt", "wb") as file:
        file.write(named.encode())
    with pytest.raises(HubError, match="local files only if it is local"):
        read_manifest("memory://fuzz/m.txt")


# -------------------------------------------------------------------------- folders of results


def folder(home: Path, described: bytes | None = None, shard: bytes | None = None) -> Results:
    sound = unpack(result_seeds()[0], 2)
    (home / "data").mkdir()
    (home / "hub.json").write_bytes(sound[0] if described is None else described)
    (home / "data" / "000001-a.parquet").write_bytes(sound[1] if shard is None else shard)
    return Results(str(home))


def changed(name: str, values: Any) -> bytes:
    table = pq.read_table(io.BytesIO(unpack(result_seeds()[0], 2)[1]))
    column = values if isinstance(values, pa.Array) else pa.array(values, table[name].type)
    sink = io.BytesIO()
    pq.write_table(table.set_column(table.column_names.index(name), name, column), sink)
    return sink.getvalue()


def test_sound_results_are_read(tmp_path: Path) -> None:
    assert len(stored_index(folder(tmp_path))) == 2


@pytest.mark.parametrize(
    "described", [b"[" * 5000, b"\xff", b"[]", b'{"format": 1, "task": 1}', b"{" + b" " * 2**23]
)
def test_a_description_that_is_none(described: bytes, tmp_path: Path) -> None:
    with pytest.raises(HubError):
        folder(tmp_path, described)


SIXTEEN = [0.5] * 16


@pytest.mark.parametrize(
    "shard",
    [
        b"PAR1",
        b"",
        changed("status", pa.array([1.0, 2.0, 3.0])),
        changed("path", ["a", None, "c"]),
        changed("dtype", [None, "float32", "float32"]),
        changed("numbers", [SIXTEEN, SIXTEEN * 2, SIXTEEN]),
        changed("numbers", [[None] * 32, SIXTEEN * 2, SIXTEEN * 2]),
        changed("numbers", [[float("nan")] * 32, SIXTEEN * 2, SIXTEEN * 2]),
        changed("parts", [["a", None], ["a", "b"], ["a", "b"]]),
        changed("parts", [None, ["a", "b"], ["a", "b"]]),
        changed("shape", pa.array([b"\xff", b"a", b"b"]).view(pa.string())),
        twice(),
    ],
)
def test_a_shard_that_is_none(shard: bytes, tmp_path: Path) -> None:
    results = folder(tmp_path, shard=shard)
    with pytest.raises(HubError):
        stored_index(results)


def test_shards_of_two_kinds(tmp_path: Path) -> None:
    results = folder(tmp_path)
    more = pq.read_table(tmp_path / "data" / "000001-a.parquet").append_column("more", pa.nulls(3))
    pq.write_table(more, tmp_path / "data" / "000002-a.parquet")
    with pytest.raises(HubError, match="different columns"):
        results.rows()
    assert json.loads((tmp_path / "hub.json").read_text())["format"] == 1
