"""How `RayExecutor` starts and closes, with as much of Ray as that takes."""

import os
import sys
import time

import pytest

from transformer_nfn.jobs import JobError, RayExecutor


@pytest.mark.parametrize(
    "options", [{"cpus": 0}, {"cpus": -1}, {"gpus": -1}, {"retries": -1}, {"memory_bytes": -1}]
)
def test_senseless_requests_are_refused(options: dict[str, int]):
    with pytest.raises(JobError, match="a job takes CPUs or GPUs"):
        RayExecutor(**options)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(JobError, match=r"pip install 'transformer-nfn\[zoo\]'"):
        RayExecutor()


class FakeRay:
    """As much of Ray as starting and closing takes."""

    def __init__(self, **resources: float) -> None:
        self.resources = resources
        self.calls: list[tuple[str, dict[str, object]]] = []

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: object) -> None:
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert "RAY_prestart_worker_first_driver" in os.environ
        self.calls.append(("init", options))

    def shutdown(self) -> None:
        self.calls.append(("shutdown", {}))

    def cluster_resources(self) -> dict[str, float]:
        return self.resources


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay(CPU=10.0, GPU=2.0, memory=7e9)
    monkeypatch.setitem(sys.modules, "ray", fake)
    # There is nothing to guard, and not all of these executors are closed.
    monkeypatch.setattr("transformer_nfn.jobs.ray_orphans._ENVIRONMENTS", "/none")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    monkeypatch.setenv("RAY_task_oom_retries", "0")
    return fake


def test_a_cluster_that_does_not_answer_is_named(fake: FakeRay, monkeypatch: pytest.MonkeyPatch):
    def refuse(**_: object) -> None:
        raise ConnectionError("Failed to connect")

    monkeypatch.setattr(fake, "init", refuse)
    with pytest.raises(JobError, match=r"no Ray cluster .* nowhere:1.*RAY_AUTH_MODE=token"):
        RayExecutor("nowhere:1")


def test_a_machine_too_busy_to_start_ray_is_an_error_of_one_line(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
):
    def fail(**_: object) -> None:
        raise Exception("The current node timed out during startup. This could happen because")

    monkeypatch.setattr(fake, "init", fail)
    with pytest.raises(JobError, match=r"did not start on this machine .* or without Ray"):
        RayExecutor()


def test_other_failures_of_ray_stay_what_they_are(fake: FakeRay, monkeypatch: pytest.MonkeyPatch):
    def fail(**_: object) -> None:
        raise RuntimeError("another")

    monkeypatch.setattr(fake, "init", fail)
    with pytest.raises(RuntimeError, match="another"):
        RayExecutor()


def test_without_an_address_it_starts_a_cluster_of_its_own(fake: FakeRay):
    executor = RayExecutor(cpus=3)
    ((call, options),) = fake.calls
    assert call == "init"
    assert options["address"] == "local"  # never one that runs here already
    assert options["include_dashboard"] is False
    executor.close()
    executor.close()
    assert [call for call, _ in fake.calls] == ["init", "shutdown"]
    with pytest.raises(JobError, match="closed"):
        next(executor.run(abs, [1]))


def test_with_an_address_it_connects(fake: FakeRay):
    RayExecutor("ray://head:10001").close()
    assert fake.calls[0][1]["address"] == "ray://head:10001"
    assert "include_dashboard" not in fake.calls[0][1]


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({}, 10),
        ({"cpus": 3}, 3),
        ({"cpus": 0.5}, 20),
        ({"gpus": 1}, 2),
        ({"gpus": 0.25}, 8),
        ({"cpus": 0, "gpus": 1}, 2),
        ({"memory_bytes": 2 * 10**9}, 3),
    ],
)
def test_slots_are_what_the_scarcest_resource_allows(
    fake: FakeRay, options: dict[str, int], slots: int
):
    assert RayExecutor(**options).slots == slots


def test_jobs_that_never_fit_are_refused_where_nothing_grows(fake: FakeRay):
    with pytest.raises(JobError, match=r"a job takes \{'CPU': 11\}, but this machine has only"):
        RayExecutor(cpus=11)
    assert [call for call, _ in fake.calls] == ["init", "shutdown"]
    assert RayExecutor("auto", cpus=11).slots == 1


def test_the_size_of_a_cluster_is_followed(fake: FakeRay, monkeypatch: pytest.MonkeyPatch):
    executor = RayExecutor("auto")
    fake.resources["CPU"] = 30.0
    assert executor.slots == 10
    later = time.monotonic() + 11
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert executor.slots == 30
