"""No command writes over what it reads, nor through a link to what has another name."""

import os
import shutil
from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.cli.run import tnfn


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A net, a copy, its shards, a manifest and a config, each of which a command might read."""
    net = made.model("gpt2")
    made.save(net, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    made.save(net, tmp_path / "shards", max_shard_size="20KB")
    made.zoo_net(tmp_path / "net.safetensors")
    shutil.copy(tmp_path / "a" / "config.json", tmp_path / "config.html")
    (tmp_path / "files.csv").write_text(f"path\n{tmp_path / 'net.safetensors'}\n")
    (tmp_path / "files.jsonl").write_text(f'{{"path": "{tmp_path / "net.safetensors"}"}}\n')
    os.link(tmp_path / "b" / "model.safetensors", tmp_path / "hard.safetensors")
    (tmp_path / "soft.safetensors").symlink_to("b/model.safetensors")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(home: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "line",
    [
        "same a b/model.safetensors --certificate b/model.safetensors",
        "same a b --certificate b/model.safetensors",
        "same a b/model.safetensors --certificate hard.safetensors",
        "same a b --certificate soft.safetensors",
        "same a shards --certificate SHARD",
        "same a shards/model.safetensors.index.json --certificate SHARD",
        "same a/model.safetensors b --config-first config.html --html config.html",
        "kin a/model.safetensors b --config-first config.html --html config.html",
        "inspect a/model.safetensors --config config.html --html config.html",
        "dedup files.csv --to files.csv",
        "fingerprint files.jsonl --out files.jsonl",
    ],
)
def test_what_is_read_is_not_written(
    line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = next((home / "shards").glob("model-00001-of-*.safetensors"))
    before = contents(home)
    ended = tnfn(capsys, *line.replace("SHARD", str(shard)).split())
    assert ended.code == 1, ended
    assert "is what this command reads; choose another name" in ended.err
    assert contents(home) == before


def test_a_certificate_beside_a_file_can_be_written_again(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "g.safetensors").write_bytes(b"old")
    shutil.copy(home / "net.safetensors", home / "copy.safetensors")
    words = ("same", "net.safetensors", "copy.safetensors", "--certificate", "g.safetensors")
    assert tnfn(capsys, *words).code == 0
    assert (home / "g.safetensors").read_bytes() != b"old"


@pytest.mark.parametrize("option", ["--html x.html", "--plot x.png"])
def test_a_link_to_something_else_is_refused(
    option: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = home / option.split()[1]
    link.symlink_to("b/model.safetensors")
    before = contents(home)
    ended = tnfn(capsys, "same", "a", "a", *option.split())
    assert ended.code == 1
    assert "is a link to" in ended.err
    assert contents(home) == before


def test_a_page_is_written_whole_and_breaks_a_hard_link(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.link(home / "b" / "model.safetensors", home / "x.html")
    before = contents(home / "b")
    assert tnfn(capsys, "inspect", "a", "--html", "x.html").code == 0
    assert contents(home / "b") == before
    assert (home / "x.html").read_text().startswith("<!doctype html>")
    assert not list(home.glob(".*"))  # what it was called while it was written
