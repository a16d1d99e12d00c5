from pathlib import Path

import pyarrow.compute as pc
import pytest
import torch
from safetensors import safe_open

from tests.zoo.conftest import plant
from transformer_nfn.space import NetBatch
from transformer_nfn.zoo import StoreError, export
from transformer_nfn.zoo.dataset import NetShape, Zoo, ok
from transformer_nfn.zoo.format.schema import COLUMNS

ALL = pc.field("run") >= 0
BEST = pc.field("checkpoint") == "best"


def read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors, as copies: the file may be replaced; and metadata."""
    with safe_open(path, "pt") as file:
        names = file.keys()
        return {name: file.get_tensor(name).clone() for name in names}, file.metadata()


def tensors_of(net: NetBatch, place: int) -> dict[str, torch.Tensor]:
    blocks = {
        f"blocks.{number}.{name}": net.blocks[name][place, 0, number]
        for name in net.blocks.tensors
        for number in range(net.blocks.blocks)
    }
    parts = {
        f"{part}.{name}": tensor[place]
        for part in ("embedding", "classifier")
        for name, tensor in getattr(net, part).items()
    }
    return blocks | parts


def test_each_chosen_row_becomes_a_file_with_its_tensors_and_columns(tiny_zoo, tmp_path):
    written = export(tiny_zoo, BEST, tmp_path / "nets" / "best")
    rows = tiny_zoo.rows(ok & BEST)
    assert [path.name for path in written] == [
        f"run{run:06d}-best.safetensors" for run in range(1, 10)
    ]
    assert sorted((tmp_path / "nets" / "best").iterdir()) == written
    for place, (path, row) in enumerate(zip(written, rows.table.to_pylist(), strict=True)):
        tensors, metadata = read(path)
        expected = tensors_of(rows.nets, place)
        assert set(tensors) == set(expected) == set(tiny_zoo.shape.stored)
        for name, tensor in tensors.items():
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, expected[name])
        assert NetShape.model_validate_json(metadata.pop("net")) == tiny_zoo.shape
        assert metadata == {name: str(row[name]) for name in COLUMNS}
    # Negative control: the files are of different nets.
    assert not torch.equal(read(written[0])[0]["blocks.0.Q"], read(written[1])[0]["blocks.0.Q"])


def test_only_rows_that_are_ok_are_written(tiny_zoo, tmp_path):
    assert len(export(tiny_zoo, ALL, tmp_path)) == 27
    assert export(tiny_zoo, pc.field("run") == 0, tmp_path / "wild") == []


def test_files_of_the_same_rows_are_replaced_and_others_are_left(tiny_zoo, tmp_path):
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    (path,) = export(tiny_zoo, BEST & (pc.field("run") == 3), tmp_path)
    tensors, metadata = read(path)
    path.write_bytes(b"old")
    assert export(tiny_zoo, BEST & (pc.field("run") == 3), tmp_path) == [path]
    again = read(path)
    assert again[1] == metadata
    assert all(torch.equal(again[0][name], tensor) for name, tensor in tensors.items())
    assert {file.name for file in tmp_path.iterdir()} == {"mine.txt", path.name}


@pytest.mark.parametrize("name", ["../../evil", "/evil", "a/b", "", ".", "best.x", "be st"])
def test_a_hostile_checkpoint_name_is_refused(own_zoo, tmp_path, name):
    shard = own_zoo.names()[0]
    plant(own_zoo, shard, lambda rows: rows[0].update(checkpoint=name), sign=True)
    with pytest.raises(StoreError, match="has a checkpoint named") as caught:
        export(Zoo(own_zoo.url), ALL, tmp_path / "a" / "b" / "nets")
    assert repr(name) in str(caught.value)
    assert shard in str(caught.value)
    assert list((tmp_path / "a").rglob("*.safetensors")) == []
