"""Parquet and JSON that somebody else may have written."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from transformer_nfn.jobs import DamagedError, ShardFolder


def folder(home: Path, table: pa.Table, **options: object) -> ShardFolder:
    pq.write_table(table, home / "a.parquet", **options)
    return ShardFolder(home)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 5, b"\x80\x04" * 50])
def test_what_is_no_parquet_is_said(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    for read in (ShardFolder(tmp_path).read, ShardFolder(tmp_path).metadata):
        with pytest.raises(DamagedError, match=r"shard a\.parquet"):
            read("a.parquet")


def test_a_missing_shard_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ShardFolder(tmp_path).read("a.parquet")


def test_a_column_twice(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DamagedError, match="twice"):
        folder(tmp_path, twice).read("a.parquet")


def test_text_that_is_no_text(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([b"\xff"]).view(pa.string())})
    with pytest.raises(DamagedError, match="UTF8"):
        folder(tmp_path, table).read("a.parquet")


def test_nulls_that_would_fill_the_memory(tmp_path: Path) -> None:
    """They take no bytes in the file, and as lists of fixed size their full width in memory."""
    kind = pa.list_(pa.float32(), 20_000)
    small = folder(tmp_path, pa.table({"a": pa.nulls(100, kind)}), compression="none")
    assert len(small.read("a.parquet")) == 100
    rows = pa.table({"a": pa.nulls(1, kind)})
    with pq.ParquetWriter(tmp_path / "a.parquet", rows.schema) as writer:
        for _ in range(50):
            writer.write_table(pa.table({"a": pa.nulls(100, kind)}))
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(DamagedError, match="would become"):
        small.read("a.parquet")


def test_zeros_that_would_fill_the_memory(tmp_path: Path) -> None:
    zeros = pa.table({"a": np.zeros(40_000_000, np.int64)})
    shards = folder(tmp_path, zeros, compression="zstd", use_dictionary=False)
    assert (tmp_path / "a.parquet").stat().st_size < 500_000
    with pytest.raises(DamagedError, match="would become"):
        shards.read("a.parquet")


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 5000, b"{" + b" " * 2**23 + b"}"])
def test_json_that_is_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DamagedError, match=r"a\.json"):
        ShardFolder(tmp_path).read_json("a.json")
