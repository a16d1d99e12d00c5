from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from tests.checkpoints import made
from tests.hub.nets import upload
from transformer_nfn.checkpoints import (
    Checkpoint,
    CheckpointError,
    Entry,
    TensorFiles,
    UnreadableError,
    rewrite,
)
from transformer_nfn.kinship import fingerprint
from transformer_nfn.stores.rangefile import AHEAD


@pytest.mark.parametrize("shards", [False, True])
def test_a_url_gives_the_same_tensors(shards: bool, tmp_path: Path, memory: str) -> None:
    options = {"max_shard_size": "15KB"} if shards else {}
    made.save(made.model("llama"), tmp_path, **options)
    upload(tmp_path, memory)
    with Checkpoint(tmp_path) as near, Checkpoint(memory) as far:
        assert (near.spec, near.settings) == (far.spec, far.settings)
        assert list(near.files) == list(far.files)
        for name in near.files:
            assert torch.equal(near.files.read(name), far.files.read(name))
            if near.files.entry(name).shape[0] > 3:
                pieces = (files.rows(name, [2, 0]) for files in (near.files, far.files))
                assert torch.equal(*pieces)


@pytest.mark.parametrize("shards", [False, True])
def test_a_copy_of_what_is_behind_a_url_is_local(shards: bool, tmp_path: Path, memory: str) -> None:
    options = {"max_shard_size": "15KB"} if shards else {}
    home = made.save(made.model("llama"), tmp_path / "home", **options)
    upload(home, memory)
    name = "model.norm.weight"
    added = {"more": Entry(torch.float32, (3,), 0, 0)}
    for place, out in ((home, "near"), (memory, "far")):
        with Checkpoint(place) as checkpoint:
            rewrite(checkpoint, [], tmp_path / f"{out} copy")
            changes = [(name, 2 * checkpoint.files.read(name)), ("more", torch.arange(3.0))]
            rewrite(checkpoint, changes, tmp_path / out, added=added)
    for file in sorted(home.glob("*.safetensors")):
        assert (tmp_path / "far copy" / file.name).read_bytes() == file.read_bytes()
    for file in sorted((tmp_path / "near").iterdir()):
        assert (tmp_path / "far" / file.name).read_bytes() == file.read_bytes(), file.name
    with TensorFiles(tmp_path / "far") as files, TensorFiles(home) as before:
        assert files.read(name).equal(2 * before.read(name))
        assert files.read("more").tolist() == [0, 1, 2]


def wide(folder: Path) -> Path:
    """A GPT-2 of 8 blocks whose embedding and blocks are larger than one request."""
    sizes: dict[str, Any] = {"n_embd": 96, "n_inner": 384, "n_layer": 8, "vocab_size": 9000}
    return made.save(made.model("gpt2", **sizes), folder)


def test_of_a_url_only_what_is_needed_is_read(tmp_path: Path, memory: str) -> None:
    upload(wide(tmp_path), memory)
    with Checkpoint(memory) as checkpoint:
        size = checkpoint.files.size
        assert checkpoint.files.bytes_read <= AHEAD  # the header
        fingerprint(checkpoint, blocks="middle")
        block = sum(
            entry.end - entry.begin
            for name, entry in checkpoint.files.entries.items()
            if name.startswith(checkpoint.block_name(4))
        )
        assert checkpoint.files.bytes_read <= 2 * block + 20 * AHEAD
        some = checkpoint.files.bytes_read
    with Checkpoint(memory) as checkpoint:
        fingerprint(checkpoint)
        assert checkpoint.files.bytes_read >= size > some


def test_from_a_disk_too(tmp_path: Path) -> None:
    with Checkpoint(wide(tmp_path)) as checkpoint:
        fingerprint(checkpoint, blocks="first,last")
        assert checkpoint.files.bytes_read < 0.25 * checkpoint.files.size


def test_what_is_wrong_behind_a_url(tmp_path: Path, memory: str) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        TensorFiles(f"{memory}/none.safetensors")
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/hub/bad.safetensors", b"no")
    with pytest.raises(CheckpointError, match="too few"):
        TensorFiles(f"{memory}/bad.safetensors")
    escape = b'{"weight_map": {"a": "../secret.safetensors"}}'
    fs.pipe_file("/hub/model.safetensors.index.json", escape)
    with pytest.raises(CheckpointError, match="not a plain file name"):
        TensorFiles(f"{memory}/model.safetensors.index.json")
    made.zoo_net(tmp_path / "net.safetensors")
    upload(tmp_path, memory)
    with Checkpoint(f"{memory}/net.safetensors") as checkpoint:
        checkpoint.files.largest_read = 10
        with pytest.raises(CheckpointError, match="at most 10"):
            fingerprint(checkpoint)


def test_a_server_that_gives_no_ranges(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(wide(tmp_path), memory)
    fs = fsspec.filesystem("memory")
    whole = fs.cat_file("/hub/model.safetensors")
    monkeypatch.setattr(type(fs), "cat_file", lambda *_, **__: whole)
    with pytest.raises(UnreadableError, match="does not give ranges"):
        TensorFiles(f"{memory}/model.safetensors")
