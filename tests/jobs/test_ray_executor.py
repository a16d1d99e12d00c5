import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from transformer_nfn.jobs import Done, Executor, Failed, JobError, RayExecutor, ShardFolder


def on_sigterm(*_: object) -> None:
    """What a program does when it is told to end."""


@pytest.fixture(scope="module")
def executor() -> Iterator[RayExecutor]:
    before = signal.signal(signal.SIGTERM, on_sigterm)
    with RayExecutor(retries=2) as executor:
        yield executor
    signal.signal(signal.SIGTERM, before)


def test_a_handler_of_sigterm_stays(executor: RayExecutor):
    assert signal.getsignal(signal.SIGTERM) is on_sigterm


def work(job: tuple[str, Path]) -> str:
    """What the first part of the job says; the path is where it leaves traces."""
    kind, path = job
    with path.open("a") as file:
        file.write("x")
    runs = path.stat().st_size
    if kind == "sleep":
        time.sleep(300)
    if kind == "raise":
        raise ArithmeticError("planted")
    if kind == "die" or (kind == "die once" and runs == 1):
        os._exit(1)
    if kind == "be killed" and runs == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "threads":
        return os.environ["OMP_NUM_THREADS"]
    return f"{kind} {runs}"


def runs(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_each_job_has_its_outcome(executor: RayExecutor, tmp_path: Path):
    kinds = ["well", "raise", "die once", "be killed", "die", "threads"]
    jobs = {kind: (kind, tmp_path / kind) for kind in kinds}
    outcomes = {outcome.job[0]: outcome for outcome in executor.run(work, jobs.values())}
    assert {kind: outcome.job for kind, outcome in outcomes.items()} == jobs

    well, once, killed = outcomes["well"], outcomes["die once"], outcomes["be killed"]
    assert isinstance(well, Done)
    assert well.result == "well 1"
    assert 0 <= well.seconds < 10
    assert isinstance(once, Done)
    assert once.result == "die once 2"
    assert isinstance(killed, Done)
    assert killed.result == "be killed 2"
    assert isinstance(outcomes["threads"], Done)
    assert outcomes["threads"].result == "1"

    raised = outcomes["raise"]
    assert isinstance(raised, Failed)
    assert "Traceback" in raised.error
    assert "ArithmeticError: planted" in raised.error
    assert runs(tmp_path / "raise") == 1  # an exception is not retried
    assert outcomes["die"] == Failed(jobs["die"], *2 * ["worker died 3 times"], died=True)
    assert runs(tmp_path / "die") == 3


def test_closures_and_results_that_cannot_travel(executor: RayExecutor):
    offset = 10

    def function(job: int) -> object:
        return threading.Lock() if job == 1 else job + offset

    outcomes = {outcome.job: outcome for outcome in executor.run(function, [0, 1, 2])}
    assert isinstance(outcomes[0], Done)
    assert outcomes[0].result == 10
    assert isinstance(outcomes[2], Done)
    assert outcomes[2].result == 12
    assert isinstance(outcomes[1], Failed)
    assert "pickle" in outcomes[1].error


def test_workers_commit_shards(executor: RayExecutor, tmp_path: Path):
    folder = ShardFolder(tmp_path / "zoo")

    def build(seed: int) -> bool:
        table = pa.table({"seed": [seed]})
        return folder.commit(f"{seed % 3}.parquet", table, row_group_size=1)

    outcomes = list(executor.run(build, range(6)))
    assert sum(outcome.result for outcome in outcomes if isinstance(outcome, Done)) == 3
    assert folder.names() == {"0.parquet", "1.parquet", "2.parquet"}
    assert folder.leftovers() == []


def test_outcomes_come_in_order_of_completion(executor: RayExecutor, tmp_path: Path):
    gate = tmp_path / "gate"

    def function(job: int) -> int:
        while job == 0 and not gate.exists():
            time.sleep(0.05)
        return job

    if executor.slots < 2:
        pytest.skip("needs two CPUs")
    outcomes = executor.run(function, range(4))
    assert {next(outcomes).job for _ in range(3)} == {1, 2, 3}
    gate.touch()
    assert [outcome.job for outcome in outcomes] == [0]


def test_jobs_are_handed_over_as_there_is_room(executor: RayExecutor):
    drawn = 0

    def jobs() -> Iterator[int]:
        nonlocal drawn
        for job in range(100):
            drawn += 1
            yield job

    room = executor.slots + max(2, executor.slots // 4)
    outcomes = executor.run(abs, jobs())
    assert drawn == 0
    for seen in range(100):
        next(outcomes)
        assert drawn <= seen + room
    assert list(outcomes) == []
    assert drawn == 100


def test_no_jobs_no_outcomes(executor: RayExecutor):
    assert list(executor.run(abs, [])) == []


def test_leaving_early_kills_what_is_under_way(executor: RayExecutor, tmp_path: Path):
    if executor.slots < 2:
        pytest.skip("needs two CPUs")
    slow, late = tmp_path / "slow", [tmp_path / f"late-{i}" for i in range(50)]
    jobs = [("sleep", slow), ("well", tmp_path / "well"), *(("sleep", path) for path in late)]
    outcomes = executor.run(work, jobs)
    assert next(outcomes).job[0] == "well"
    wait_for(lambda: runs(slow))
    outcomes.close()
    # All places are free again, so nothing sleeps there any more; and it can be used again.
    again = [("well", tmp_path / f"again-{i}") for i in range(2 * executor.slots)]
    assert all(isinstance(outcome, Done) for outcome in executor.run(work, again))
    assert runs(slow) == 1  # a cancelled job is not retried
    assert sum(runs(path) for path in late) <= executor.slots


def test_an_error_of_the_source_of_jobs_passes_through(executor: RayExecutor, tmp_path: Path):
    def jobs() -> Iterator[tuple[str, Path]]:
        yield "sleep", tmp_path / "slow"
        raise LookupError("planted")

    with pytest.raises(LookupError, match="planted"):
        list(executor.run(work, jobs()))
    assert all(isinstance(o, Done) for o in executor.run(work, [("well", tmp_path / "after")]))


def test_a_job_that_misses_its_end_is_told_again(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ray forgets about some that are just being handed over: one of forty was seen."""
    cancel, told = executor._ray.cancel, []

    def missed_once(reference: object, *, force: bool) -> None:
        told.append(reference)
        if told.count(reference) > 1:
            cancel(reference, force=force)

    monkeypatch.setattr(executor._ray, "cancel", missed_once)
    started = time.monotonic()
    run = executor.run(work, [("sleep", tmp_path / "slow"), ("well", tmp_path / "well")])
    assert isinstance(next(run), Done)
    run.close()
    assert len(told) >= 2
    assert isinstance(next(executor.run(work, [("well", tmp_path / "after")])), Done)
    assert time.monotonic() - started < 60


def test_an_interrupt_closes_a_cluster_of_its_own(
    executor: RayExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    closed = []
    monkeypatch.setattr(executor, "close", lambda: closed.append(True))
    slow = tmp_path / "slow"

    def interrupt() -> None:
        wait_for(lambda: runs(slow))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            next(executor.run(work, [("sleep", slow)]))
        thread.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert closed == [True]
    monkeypatch.undo()
    jobs = [("well", tmp_path / f"after-{i}") for i in range(executor.slots)]
    assert all(isinstance(outcome, Done) for outcome in executor.run(work, jobs))


CONNECT = """
import sys
from transformer_nfn.jobs import RayExecutor
with RayExecutor(sys.argv[1], cpus=0.5) as executor:
    print(executor.slots, [outcome.result for outcome in executor.run(abs, [-3])])
"""


def test_one_that_connects_leaves_the_cluster_running(executor: RayExecutor):
    address = executor._ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, address], capture_output=True, text=True, timeout=180
    )
    assert done.stdout == f"{2 * executor.slots} [3]\n", done.stderr
    assert [outcome.job for outcome in executor.run(abs, [1])] == [1]


def test_it_is_an_executor(executor: RayExecutor):
    def slots(executor: Executor) -> int:
        return executor.slots

    assert slots(executor) == int(executor._ray.cluster_resources()["CPU"])


def test_nothing_is_reported(executor: RayExecutor):
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    usage = sys.modules["ray._common.usage.usage_lib"]
    assert not usage.usage_stats_enabled()


def test_a_second_connection_is_refused(executor: RayExecutor):
    for address in (None, "auto"):
        with pytest.raises(JobError, match="connected to a Ray cluster already"):
            RayExecutor(address)
