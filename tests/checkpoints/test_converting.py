"""Other formats as safetensors: the same tensors, and no code of a pickle."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.material.gguf_files import source, write
from tests.checkpoints import made
from tests.security.poison import poisons
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, convert, unpickling
from transformer_nfn.identity import Answer, same


def forked(words: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
    """The process that unpickles, as a fork of this one, which has imported torch already."""
    out, into = os.pipe()
    if not (child := os.fork()):
        status, said = 2, "no message"
        try:
            unpickling._main(*words[words.index(unpickling.__name__) + 1 :])
            status = 0
        except SystemExit as end:
            status, said = 1, str(end.code)
        finally:
            os.write(into, said.encode() if status else b"")
            os._exit(status)
    os.close(into)
    with open(out) as stderr:
        said = stderr.read()
    return subprocess.CompletedProcess(
        words, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), stderr=said
    )


@pytest.fixture
def in_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a process that imports torch takes seconds; a few tests do."""
    monkeypatch.setattr(unpickling.subprocess, "run", forked)


def test_gguf_becomes_a_folder_that_transformers_reads(tmp_path: Path) -> None:
    folder = source("qwen3", tmp_path / "net")
    seen: list[tuple[int, int]] = []
    file = write(folder, tmp_path / "net.gguf")
    out = convert(file, tmp_path / "out", progress=lambda *counts: seen.append(counts))
    ours, theirs = (load_file(home / "model.safetensors") for home in (out, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert seen == [(number, len(theirs)) for number in range(1, len(theirs) + 1)]
    net = made.load(out, torch.float32)
    assert torch.equal(net.state_dict()["lm_head.weight"], theirs["lm_head.weight"])
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("around", [None, "state_dict"])
def test_a_pickle_of_torch(
    around: str | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if around is not None:
        request.getfixturevalue("in_a_fork")
    folder = made.save(made.model("gpt2"), tmp_path / "net")
    tensors = load_file(folder / "model.safetensors")
    tied = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]}
    file = folder / "pytorch_model.bin"
    torch.save({around: tied, "epoch": 3} if around else tied, file)  # noqa: TID251 - what people have
    out = convert(file, tmp_path / "out", unpickled=True)
    found = load_file(out / "model.safetensors")
    assert found.keys() == tied.keys()
    assert all(torch.equal(found[name], tied[name]) for name in tied)
    with Checkpoint(folder / "model.safetensors") as one, Checkpoint(out) as two:
        assert same(one, two, seed=0).answer is Answer.EQUIVALENT


@pytest.mark.usefixtures("in_a_fork")
@pytest.mark.parametrize("kind", ["pickle", "torch.save", "torch.save, legacy"])
def test_a_pickle_with_code_is_not_run(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    file = tmp_path / "net.bin"
    file.write_bytes(poisons(marker)[kind])
    with pytest.raises(CheckpointError, match="cannot be unpickled: it is no pickle, or holds"):
        convert(file, tmp_path / "out", unpickled=True)
    assert not marker.exists()
    assert not (tmp_path / "out").exists()


def test_a_pickle_that_grows_is_stopped(tmp_path: Path) -> None:
    """A view of one number that is as large as one likes: its copy is not."""
    file = tmp_path / "net.bin"
    torch.save({"a": torch.zeros(1).expand(2**33)}, file)  # noqa: TID251
    assert file.stat().st_size < 10_000
    with pytest.raises(CheckpointError, match="cannot be unpickled"):
        convert(file, tmp_path / "out", unpickled=True)


@pytest.mark.usefixtures("in_a_fork")
def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.bin"
    torch.save([torch.zeros(2)], file)  # noqa: TID251
    with pytest.raises(CheckpointError, match="say --unpickle"):
        convert(file, tmp_path / "out")
    with pytest.raises(CheckpointError, match="no tensors by name"):
        convert(file, tmp_path / "out", unpickled=True)
    with pytest.raises(CheckpointError, match="does not exist"):
        convert(tmp_path / "gone.bin", tmp_path / "out", unpickled=True)
    assert not (tmp_path / "out").exists()
    for name in ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"):
        home = tmp_path / f"with {name}"
        home.mkdir()
        (home / name).write_bytes(b"")
        with pytest.raises(CheckpointError, match="already"):
            convert(file, home, unpickled=True)
    with pytest.raises(CheckpointError, match="--out"):
        convert(file, file, unpickled=True)
    with pytest.raises(CheckpointError, match="one of several parts"):
        convert(tmp_path / "pytorch_model-00001-of-00002.bin", tmp_path / "out", unpickled=True)


def test_another_config_is_not_kept(tmp_path: Path) -> None:
    file = write(source("qwen2", tmp_path / "net"), tmp_path / "net.gguf")
    home = tmp_path / "out"
    home.mkdir()
    (home / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="another model's"):
        convert(file, home)
    assert [path.name for path in home.iterdir()] == ["config.json"]


A = torch.zeros(2)


@pytest.mark.usefixtures("in_a_fork")
@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"a": A, "sub": {"b": A}}, "inside 'sub'"),
        ({"a": A, "layers": [A]}, "inside 'layers'"),
        ({"model": {"a": A}, "b": A}, "beside 'model'"),
        ({"model": {"a": A}, "ema": {"a": A}}, "another model"),
        ({"__metadata__": A, "a": A}, None),
        ({"a": A.to(torch.complex64)}, None),
    ],
)
def test_no_tensor_is_left_out_or_unreadable(
    stored: dict[str, object], message: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "net.pt"
    torch.save(stored, file)  # noqa: TID251
    with pytest.raises(CheckpointError, match=message):
        convert(file, tmp_path / "out", unpickled=True)
    assert not (tmp_path / "out").exists()
