"""What users get wrong is one line and exit code 1, before the work where that can be known."""

import os
import sys
from pathlib import Path

import pytest

from tests.checkpoints import made
from tests.cli.run import tnfn

#: How a command is given the wrong path; OUT is a place for what it writes.
COMMANDS = {
    "inspect": ["BAD"],
    "inspect, a config": ["NET", "--config", "BAD"],
    "same": ["BAD", "NET"],
    "same, the second": ["NET", "BAD"],
    "explain": ["BAD", "--from", "NET"],
    "explain, a parent": ["NET", "--from", "BAD"],
    "kin": ["BAD", "NET"],
    "kin, the second": ["NET", "BAD"],
    "reparam": ["BAD", "--out", "OUT"],
    "apply": ["BAD", "NET", "--out", "OUT"],
    "fingerprint": ["BAD"],
    "dedup": ["BAD"],
    "audit": ["BAD"],
    "nearest": ["NET", "BAD"],
}


def bad_places(home: Path) -> dict[str, Path]:
    """A path of each kind that is no checkpoint."""
    places = {
        name: home / name for name in ("missing", "empty", "folder", "link", "loop", "secret")
    }
    places["under a file"] = home / "empty" / "a.safetensors"
    places["a name too long"] = home / ("a" * 300)
    places["empty"].touch()
    places["folder"].mkdir()
    places["link"].symlink_to(home / "nowhere.safetensors")
    places["loop"].symlink_to("loop")
    places["secret"].mkdir()
    (places["secret"] / "model.safetensors").write_bytes(b"x" * 100)
    (places["secret"] / "model.safetensors").chmod(0)
    return places


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_path_is_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net = made.save(made.model("gpt2"), tmp_path / "net")
    for kind, bad in bad_places(tmp_path).items():
        values = {"BAD": str(bad), "NET": str(net), "OUT": str(tmp_path / "out")}
        words = [values.get(word, word) for word in COMMANDS[command]]
        ended = tnfn(capsys, command.partition(",")[0], *words)
        assert ended.code == 1, (kind, ended)
        lines = [line for line in ended.err.splitlines() if not line.startswith("fingerprints ")]
        assert len(lines) == 1, (kind, ended)
        assert not (tmp_path / "out").exists(), kind


@pytest.mark.parametrize("out", [False, True])
def test_links_that_lead_nowhere_hide_no_other_file(
    out: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "nets"
    for number in range(3):
        made.zoo_net(home / f"{number}.safetensors", "residual", number)
    (home / "loop.safetensors").symlink_to("loop.safetensors")
    (home / "loop").symlink_to("loop")
    (home / "nowhere.safetensors").symlink_to("none")
    more = ["--out", tmp_path / "prints"] if out else []
    ended = tnfn(capsys, "dedup", home, *more)
    assert (ended.code, ended.out.splitlines()[-1][:8]) == (0, "3 files,"), ended
    assert "loop.safetensors" in ended.err
    assert "nowhere.safetensors" in ended.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ended = tnfn(capsys, "inspect", bad_places(tmp_path)["secret"])
    assert "Permission denied" in ended.err


@pytest.mark.parametrize("command", ["same", "dedup"])
def test_a_picture_without_matplotlib_is_refused_before_the_work(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = [tmp_path / "missing", tmp_path / "missing", "--plot", tmp_path / "a.png"]
    ended = tnfn(capsys, command, *words)
    assert (ended.code, ended.out) == (1, "")
    assert "--plot needs matplotlib: `pip install" in ended.err
    assert "missing does not exist" not in ended.err  # which would come next
    monkeypatch.undo()
    assert "does not exist" in tnfn(capsys, command, *words).err


@pytest.mark.parametrize("option", ["--plot", "--to"])
def test_where_to_write_is_checked_first(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, says in (("a.none", "should end in"), ("none/a.csv", ""), ("none/a.png", "")):
        ended = tnfn(capsys, "dedup", tmp_path / "missing", option, tmp_path / name)
        assert ended.code == 1
        assert says in ended.err
        assert "missing does not exist" not in ended.err


def test_a_full_disk_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = made.save(made.model("gpt2"), tmp_path / "net")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ended = tnfn(capsys, "reparam", net, "--out", tmp_path / "out")
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "No space left on device" in ended.err
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_names_that_are_none_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tnfn(capsys, "same", "", tmp_path).err == "error: '' does not exist\n"
    for name in (".html", ""):
        ended = tnfn(capsys, "same", tmp_path, tmp_path, "--html", name)
        assert (ended.code, ended.out) == (1, "")
        assert "is no name for a file; give one that ends in .html" in ended.err


@pytest.mark.parametrize("more", ["--set n_head=3", "--config-second c.json", "--family f.py"])
def test_options_that_a_table_of_units_does_not_read_are_refused(
    more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = tnfn(capsys, "kin", tmp_path, tmp_path, "--units", "t.toml", *more.split())
    assert (ended.code, ended.out) == (2, "")
    assert "no settings are read with it" in ended.err
