import subprocess
import sys

import pytest

from transformer_nfn.jobs import Done, Executor, Failed, InProcess


def test_jobs_run_in_order_and_a_failure_stops_no_other():
    def function(job: int) -> float:
        return 6 / job

    with InProcess() as executor:
        assert executor.slots == 1
        one, two, three = executor.run(function, [2, 0, 3])
    assert isinstance(one, Done)
    assert (one.job, one.result) == (2, 3.0)
    assert 0 <= one.seconds < 1
    assert isinstance(two, Failed)
    assert two.job == 0
    assert "in function" in two.error
    assert "ZeroDivisionError" in two.error
    assert isinstance(three, Done)
    assert three.result == 2.0


def test_jobs_are_drawn_one_by_one():
    drawn = []

    def jobs():
        for job in range(5):
            drawn.append(job)
            yield job

    outcomes = InProcess().run(lambda job: job, jobs())
    assert drawn == []
    next(outcomes)
    next(outcomes)
    assert drawn == [0, 1]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_failure(kind: type[BaseException]):
    def function(job: int) -> None:
        raise kind

    with pytest.raises(kind):
        list(InProcess().run(function, [1]))


def test_it_is_an_executor():
    def use(executor: Executor) -> list[Done[int, int] | Failed[int]]:
        return list(executor.run(abs, [-1]))

    assert isinstance(use(InProcess())[0], Done)


def test_importing_jobs_imports_no_ray():
    check = "import sys, transformer_nfn.jobs; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
