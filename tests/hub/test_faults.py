"""What a run does about disks and files that fail it; benchmarks/hub/faults.py does it on Ray."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import made
from tests.hub.nets import some_nets
from tests.hub.test_bulk import rows, run
from transformer_nfn.cli import main
from transformer_nfn.hub import Bulk, FingerprintTask, HubError, Results, stored_index
from transformer_nfn.jobs import InProcess, folder


class Disk:
    """A disk that has room for some files only."""

    def __init__(self, patch: pytest.MonkeyPatch, room: int) -> None:
        self.room = room
        self._create = folder.create_file
        patch.setattr(folder, "create_file", self.create)

    def create(self, final: Path, write: Any) -> bool:
        def write_to_the_end(file: Any) -> None:
            write(file)
            if self.room == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= 1

        return self._create(final, write_to_the_end)


def test_a_full_disk_ends_the_run_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, out = some_nets(tmp_path / "nets", 20), tmp_path / "out"
    disk = Disk(monkeypatch, room=2)  # hub.json and one shard
    bulk = Bulk(FingerprintTask(), [str(home)], str(out))
    with pytest.raises(HubError, match=r"No space left on device.*make room.*continues"):
        bulk.run(InProcess())
    assert bulk.tally.files == 8
    assert len(rows(out)) == 8
    assert [path.name for path in out.rglob("_tmp/*")] == []
    disk.room = 100
    assert run(home, out)[1] == 12
    assert {row["status"] for row in rows(out).values()} == {"ok"}


def test_a_full_disk_is_one_line_at_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = some_nets(tmp_path / "nets")
    words = ["tnfn", "fingerprint", str(home), "--out", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr(sys, "argv", words)
    for room in (0, 1):  # not even hub.json, and no shard
        Disk(monkeypatch, room)
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert "No space left on device" in line


def test_a_folder_that_is_none_is_one_line_as_well(tmp_path: Path) -> None:
    home = some_nets(tmp_path / "nets", 1)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(HubError, match="cannot be read: Not a directory"):
        run(home, tmp_path / "file")


class Disturbed(FingerprintTask):
    """Something happens to a file between the look at it and the reading."""

    def read(self, path: str) -> Any:
        if path.endswith("0.safetensors"):
            os.rename(path, f"{path}.gone")
        if path.endswith("1.safetensors"):
            with open(path, "ab") as file:
                file.write(b"more")
        return super().read(path)


def test_files_that_vanish_or_grow_before_they_are_read_are_tried_again(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    grown = home / "1" / "1.safetensors"
    whole = grown.read_bytes()
    run(home, out, Disturbed())
    assert {name: row["status"] for name, row in rows(out).items()} == {
        "0.safetensors": "failed",
        "1.safetensors": "changed",
        "2.safetensors": "ok",
    }
    bulk, done = run(home, out)  # one is gone, one has four bytes too many
    assert done == 1
    assert bulk.standing()[0] == {"ok": 1, "broken": 1}
    os.rename(home / "0" / "0.safetensors.gone", home / "0" / "0.safetensors")
    grown.write_bytes(whole)
    bulk, done = run(home, out)
    assert done == 2
    assert bulk.standing()[0] == {"ok": 3}


def test_a_file_that_is_replaced_and_put_back_is_read_again(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    run(home, tmp_path / "calm")
    file, other = home / "0" / "0.safetensors", made.zoo_net(tmp_path / "other", "residual", 9)
    bulk = Bulk(FingerprintTask(), [str(home)], str(out))  # lists
    os.rename(file, tmp_path / "aside")
    os.rename(other, file)
    bulk.run(InProcess())
    assert run(home, out)[1] == 0  # what was read is what is there
    os.rename(file, other)
    os.rename(tmp_path / "aside", file)
    assert run(home, out)[1] == 1
    numbers = [rows(folder)["0.safetensors"]["numbers"] for folder in (out, tmp_path / "calm")]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("kind", ["folder", "nowhere"])
def test_an_odd_config_makes_no_work_for_every_run(tmp_path: Path, kind: str) -> None:
    home, out = some_nets(tmp_path / "nets", 1), tmp_path / "out"
    config = home / "0" / "config.json"
    config.mkdir() if kind == "folder" else config.symlink_to("none")
    assert run(home, out)[1] == 1
    assert run(home, out)[1] == 0


def test_a_file_that_comes_slowly_is_broken_until_it_is_whole(tmp_path: Path) -> None:
    home, out = tmp_path / "nets", tmp_path / "out"
    whole = made.zoo_net(home / "a.safetensors", "residual").read_bytes()
    run(home, tmp_path / "calm")
    for end in (3, 1000, len(whole) - 1, len(whole)):
        (home / "a.safetensors").write_bytes(whole[:end])
        run(home, out)
        assert rows(out)["a.safetensors"]["status"] == ("ok" if end == len(whole) else "broken")
        assert run(home, out)[1] == 0
    slow, calm = (stored_index(Results(str(o))) for o in (out, tmp_path / "calm"))
    assert slow.keys() == calm.keys()


def test_a_damaged_shard_is_named_and_its_files_are_done_again(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    run(home, out)
    (shard,) = out.glob("data/*.parquet")
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(HubError, match=f"{shard.name} of .* is not sound.*remove it"):
        run(home, out)
    shard.unlink()
    assert run(home, out)[1] == 3


def test_what_killed_writers_left_is_swept_up_by_the_next_run_only(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    run(home, out)
    left = [out / "_tmp" / "hub.json.1", out / "data" / "_tmp" / "a.parquet.1"]
    for path in left:
        path.write_bytes(b"half")
        os.utime(path, (1, 1))
    young = out / "data" / "_tmp" / "b.parquet.2"  # somebody may be writing it
    young.write_bytes(b"half")
    Results(str(out)).rows()
    assert all(path.exists() for path in left)
    Results(str(out)).claim()
    assert [path.exists() for path in (*left, young)] == [False, False, True]


def test_a_file_that_takes_too_long_is_tried_again(tmp_path: Path) -> None:
    home, out = some_nets(tmp_path / "nets", 1), tmp_path / "out"
    run(home, out, FingerprintTask(limit_seconds=-1))
    row = rows(out)["0.safetensors"]
    assert row["status"] == "failed"
    assert "takes too long" in row["reason"]
    assert run(home, out, FingerprintTask(limit_seconds=60))[1] == 1
    assert rows(out)["0.safetensors"]["status"] == "ok"
