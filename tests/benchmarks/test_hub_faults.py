"""What the harness of faults must see, is seen."""

import os
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

from tests.hub.nets import some_nets
from transformer_nfn.hub import FingerprintTask, Results
from transformer_nfn.hub.work import to_table

comparing = pytest.importorskip(
    "benchmarks.hub.disturbed.compare", reason="no benchmarks in an sdist"
)
processes = pytest.importorskip("benchmarks.material.processes", reason="no benchmarks in an sdist")

GOOD = {"missing": 0, "different": 0, "path_twice": 0, "twice": 0, "contradict": 0}


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Files, results, and the comparison of both with an undisturbed run."""
    tree, out = some_nets(tmp_path / "nets"), tmp_path / "out"
    comparing.undisturbed(tree, out)
    calm = comparing.undisturbed(tree, tmp_path / "calm")

    def judge() -> dict[str, int]:
        found = comparing.compare(tree, out, calm)
        return {name: found[name] for name in GOOD}

    return tree, out, judge


def commit(out: Path, name: str, **changes: Any) -> None:
    """One more row of the first file."""
    row = {**Results(str(out)).rows().to_pylist()[0], **changes}
    Results(str(out)).commit(name, to_table(FingerprintTask(), [row]))


def test_equal_runs_are_equal(run: Any) -> None:
    assert run[2]() == GOOD


def test_a_missing_file_is_seen(run: Any) -> None:
    _, out, judge = run
    (shard,) = out.glob("data/*.parquet")
    table = pq.read_table(shard)
    pq.write_table(table.slice(1), shard)
    assert judge() == {**GOOD, "missing": 1}


def test_the_last_bit_of_a_number_is_seen(run: Any) -> None:
    _, out, judge = run
    numbers = Results(str(out)).rows().to_pylist()[0]["numbers"]
    numbers[3] *= 1 + 2**-52
    commit(out, "000002-a.parquet", numbers=numbers)
    assert judge() == {**GOOD, "different": 1, "twice": 1, "contradict": 1}


def test_a_wrong_row_that_was_overtaken_is_seen(run: Any) -> None:
    _, out, judge = run
    commit(out, "000000-a.parquet", shape="another")
    assert judge() == {**GOOD, "twice": 1, "contradict": 1}


def test_what_is_to_be_tried_again_is_not_twice(run: Any) -> None:
    _, out, judge = run
    commit(out, "000000-a.parquet", status="failed", numbers=None)
    assert judge() == GOOD
    commit(out, "000002-a.parquet", status="failed", numbers=None)
    assert judge() == {**GOOD, "different": 1}


@pytest.mark.parametrize("kind", ["torn", "changed", "gone"])
def test_a_shard_that_is_not_whole_or_does_not_stay_is_seen(run: Any, kind: str) -> None:
    _, out, _ = run
    (shard,) = out.glob("data/*.parquet")
    whole = shard.read_bytes()
    if kind == "torn":
        shard.write_bytes(whole[:-10])
    watch = comparing.Watch(out / "data")
    watch.start()
    while not watch.seen:
        pass
    if kind == "changed":
        shard.write_bytes(whole[:-20] + whole[-21:-1] + whole[-1:])
    if kind == "gone":
        shard.unlink()
    assert watch.close() == [shard.name]
    assert watch.close() == [shard.name]


@pytest.mark.parametrize("own_session", [True, False])
def test_processes_that_are_left_behind_are_seen(own_session: bool) -> None:
    mark = f"TNFN_FAULTS={uuid4().hex}"
    env = {**os.environ, "TNFN_FAULTS": mark.partition("=")[2]} if not own_session else None
    child = subprocess.Popen(["sleep", "60"], env=env, start_new_session=own_session)
    sessions = {child.pid} if own_session else set()
    assert processes.of_session(sessions, mark) == [child.pid]
    child.kill()
    child.wait()
    assert processes.of_session(sessions, mark) == []
