"""What fuzzing found in saved models and finished cells."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from benchmarks.safety.fuzzing.folders import zoo_seeds
from benchmarks.safety.fuzzing.models import cell_seeds
from benchmarks.safety.fuzzing.mutate import unpack
from transformer_nfn.bench import BenchError, write_report
from transformer_nfn.bench.models.guard import Guard
from transformer_nfn.bench.models.regression.kernel import KernelRegression
from transformer_nfn.bench.protocol.computing import finished_cells
from transformer_nfn.bench.protocol.splits import stored_splits
from transformer_nfn.zoo.dataset import Zoo

KEY = b"transformer_nfn.bench"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_dtypes_that_numpy_does_not_know(dtype: torch.dtype, tmp_path: Path) -> None:
    odd = torch.zeros(3).to(dtype)
    save_file({"low": odd, "high": odd.clone()}, tmp_path / "guard.safetensors")
    with pytest.raises(BenchError, match="cannot be read"):
        Guard.load(tmp_path, "invariants", 0.5)
    save_file({"mean": odd}, tmp_path / "kernel.safetensors")
    with pytest.raises(BenchError, match="not readable"):
        KernelRegression.load(tmp_path / "kernel.safetensors")


def test_numbers_without_an_axis(tmp_path: Path) -> None:
    names = ("mean", "deviation", "rows", "weights", "figures")
    path = tmp_path / "kernel.safetensors"
    save_file({name: torch.tensor(1.0).double() for name in names}, path)
    with pytest.raises(BenchError, match="should be"):
        KernelRegression.load(path)


def cell(home: Path, content: bytes) -> Path:
    (home / "cells").mkdir()
    (home / "cells" / "a.parquet").write_bytes(content)
    return home


def changed(change: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(change(pq.read_table(io.BytesIO(cell_seeds()[0]))), sink)
    return sink.getvalue()


def with_record(text: bytes) -> bytes:
    return changed(lambda table: table.replace_schema_metadata({KEY: text}))


def without(name: str) -> bytes:
    def change(table: pa.Table) -> pa.Table:
        record = json.loads(table.schema.metadata[KEY])
        del record[name]
        return table.replace_schema_metadata({KEY: json.dumps(record).encode()})

    return changed(change)


def test_a_sound_cell_is_read(tmp_path: Path) -> None:
    (found,) = finished_cells(cell(tmp_path, cell_seeds()[0]))
    assert found.record["model"] == "statnn"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PAR1",
        changed(lambda table: table.replace_schema_metadata(None)),
        with_record(b"[" * 5000),
        with_record(b"\xff"),
        with_record(b"{}"),
        without("model"),
        without("tau"),
        changed(lambda table: table.drop_columns(["predicted"])),
        changed(lambda table: table.drop_columns(["run"]).append_column("run", table["run_id"])),
    ],
)
def test_a_cell_that_is_none(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"cell a\.parquet"):
        finished_cells(cell(tmp_path, content))


def test_notes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_bytes(b"\x80\x04")
    out = cell(tmp_path, cell_seeds()[0])
    with pytest.raises(BenchError, match=r"notes\.md"):
        write_report(out, tmp_path / "report", tmp_path / "notes.md")


@pytest.mark.parametrize("content", [b"[" * 5000, b"[]", b'{"splits": 5}', b"\xff"])
def test_splits_that_are_none(content: bytes, tmp_path: Path) -> None:
    described, shard, *_ = unpack(zoo_seeds()[0], 4)
    (tmp_path / "data").mkdir()
    (tmp_path / "zoo.json").write_bytes(described)
    (tmp_path / "data" / "a.parquet").write_bytes(shard)
    (tmp_path / "splits.json").write_bytes(content)
    with pytest.raises(BenchError, match=r"splits\.json"):
        stored_splits(Zoo(tmp_path))
