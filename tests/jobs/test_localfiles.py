"""Several writers of a local folder, killed writers, and odd file systems."""

import errno
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from transformer_nfn.jobs import ShardFolder

TABLE = pa.table({"seed": [3, 1, 2]})


def test_of_racing_threads_one_commits(tmp_path: Path):
    writers = 8
    barrier = threading.Barrier(writers)

    def write(writer: int) -> list[bool]:
        folder = ShardFolder(tmp_path)
        table = pa.table({"writer": [writer] * 100})
        barrier.wait()
        return [folder.commit(f"{i}.parquet", table, row_group_size=10) for i in range(10)]

    with ThreadPoolExecutor(writers) as pool:
        committed = list(pool.map(write, range(writers)))
    folder = ShardFolder(tmp_path)
    for i in range(10):
        (winner,) = [writer for writer in range(writers) if committed[writer][i]]
        assert set(folder.read(f"{i}.parquet")["writer"].to_pylist()) == {winner}
    assert folder.leftovers() == []


def _race(url: str, writer: int) -> list[bool]:
    folder = ShardFolder(url)
    table = pa.table({"writer": [writer] * 100})
    folder.write_once(f"ready-{writer}", b"")
    while not (Path(url) / f"ready-{1 - writer}").exists():
        time.sleep(0)
    return [folder.commit(f"{i}.parquet", table, row_group_size=10) for i in range(30)]


def test_of_racing_processes_one_commits(tmp_path: Path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        jobs = [pool.apply_async(_race, (str(tmp_path), writer)) for writer in range(2)]
        one, two = [job.get(timeout=60) for job in jobs]
    assert all(a != b for a, b in zip(one, two, strict=True))
    folder = ShardFolder(tmp_path)
    assert len(folder.names()) == 30
    for i in range(30):
        assert set(folder.read(f"{i}.parquet")["writer"].to_pylist()) == {0 if one[i] else 1}


ROWS = 500_000
KILLED = f"""
import sys, pyarrow as pa
from transformer_nfn.jobs import ShardFolder
folder = ShardFolder(sys.argv[1])
table = pa.table({{"x": list(range({ROWS})), "y": ["some text"] * {ROWS}}})
print("ready", flush=True)
for i in range(10_000):
    folder.commit(f"{{i}}.parquet", table, row_group_size=1000)
"""


def _kill_while_it_writes(url: Path) -> ShardFolder:
    folder = ShardFolder(url)
    command = [sys.executable, "-c", KILLED, str(url)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        while len(names := folder.names()) < 3:
            assert writer.poll() is None
            for name in names:
                assert folder.read(name).num_rows == ROWS
        while not folder.leftovers():
            assert writer.poll() is None
        writer.kill()
    return folder


def test_a_killed_writer_leaves_no_partial_shard(tmp_path: Path):
    for attempt in range(10):  # until the kill comes before the shard has its name
        folder = _kill_while_it_writes(tmp_path / str(attempt))
        assert len(folder.names()) >= 3
        for name in folder.names():
            assert folder.read(name).num_rows == ROWS
        if folder.leftovers():
            break
    assert len(folder.leftovers()) == 1
    assert folder.sweep(3600) == 0
    assert folder.sweep(-1) == 1
    assert folder.leftovers() == []


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    folder = ShardFolder(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.commit("a.parquet", TABLE, row_group_size=2)
    assert folder.names() == set()
    assert folder.leftovers() == []


def test_without_hard_links_one_commits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    test_of_racing_threads_one_commits(tmp_path)


def test_other_errors_of_a_link_are_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EIO, "broken disk")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="broken disk"):
        ShardFolder(tmp_path).commit("a.parquet", TABLE, row_group_size=2)
    assert ShardFolder(tmp_path).leftovers() == []


def test_a_link_whose_reply_was_lost_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    link = os.link

    def lossy(source: Path, target: Path) -> None:
        link(source, target)
        raise FileExistsError(errno.EEXIST, "the repeated call found it there")

    monkeypatch.setattr(os, "link", lossy)
    assert ShardFolder(tmp_path).commit("a.parquet", TABLE, row_group_size=2) is True
