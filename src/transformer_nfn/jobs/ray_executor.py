"""Run jobs on Ray: on all cores of this machine, or on a cluster."""

import importlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any

from transformer_nfn.jobs.errors import JobError
from transformer_nfn.jobs.executors import Done, Failed, J, R, attempt
from transformer_nfn.jobs.ray_orphans import Guard

#: How long, in seconds, the size of the cluster is taken as known: nodes come and go.
_SIZE_IS_FRESH = 10.0
#: Seconds in which jobs under way must be dead, and after which they are killed again.
_KILLING, _AGAIN = 30.0, 0.2


class RayExecutor:
    """Jobs in the worker processes of a Ray cluster.

    A worker that dies (killed, out of memory, its node gone) is replaced and its job is run again,
    `retries` times; an exception of the job itself is an outcome, never retried. Ray sets
    OMP_NUM_THREADS in a worker to its whole number of CPUs, unless it is set already.

    Without an address it starts a cluster of its own on this machine, without dashboard and without
    usage statistics, and never joins one that runs there already. That cluster ends with `close`,
    on Ctrl-C, with this process, and, on Linux, also if this process is killed. It ends as well
    when the thread that made the executor ends: make it in the main thread.

    Args:
        address: None for a cluster of its own, ``"auto"`` for the one this machine belongs to,
            ``"host:port"`` or ``"ray://host:port"`` for another.
        cpus: CPUs that one job takes.
        gpus: GPUs that one job takes.
        retries: How often a job is run again after its worker died.
        memory_bytes: Memory that one job takes, if fewer jobs are to run at once because of it.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        cpus: float | int = 1,
        gpus: float | int = 0,
        retries: int = 20,
        memory_bytes: int | None = None,
    ) -> None:
        self._wanted = {"CPU": cpus, "GPU": gpus, "memory": memory_bytes or 0}
        if min(self._wanted.values()) < 0 or max(cpus, gpus) <= 0 or retries < 0:
            raise JobError(
                "a job takes CPUs or GPUs, and nothing less than 0; got "
                f"{cpus=}, {gpus=}, {memory_bytes=}, {retries=}"
            )
        self._retries = retries
        self._own = address is None
        self._ray: Any = None
        self._open = True
        self._guard = Guard() if self._own else None
        try:
            with self._guard.marking() if self._guard else nullcontext():
                self._ray = _connect(address, retries)
            self._measure()
        except BaseException:
            self.close()
            raise

    @property
    def slots(self) -> int:
        """How many jobs run at once: what the cluster has by what a job takes."""
        if self._open and time.monotonic() - self._measured > _SIZE_IS_FRESH:
            self._measure()
        return self._slots

    def run(
        self, function: Callable[[J], R], jobs: Iterable[J]
    ) -> Iterator[Done[J, R] | Failed[J]]:
        """Run all jobs, a few more being handed to Ray than run at once.

        If it is left early, by an exception or by closing the iterator, jobs under way are killed.
        """
        self._refuse_closed()
        ray = self._ray
        task = ray.remote(attempt).options(
            num_cpus=self._wanted["CPU"],
            num_gpus=self._wanted["GPU"],
            memory=self._wanted["memory"] or None,
            max_retries=self._retries,
            retry_exceptions=False,
        )
        shared = ray.put(function)  # once, not with each job
        waiting = iter(jobs)
        under_way: dict[Any, J] = {}
        try:
            while True:
                self._refuse_closed()  # Ray would start another cluster by itself
                room = self.slots + max(2, self.slots // 4) - len(under_way)
                for job in islice(waiting, max(0, room)):
                    under_way[task.remote(shared, job)] = job
                if not under_way:
                    return
                ready, _ = ray.wait(list(under_way), num_returns=1)
                for reference in ready:
                    yield self._outcome(reference, under_way.pop(reference))
        except KeyboardInterrupt:
            self._cancel(under_way)
            under_way.clear()
            if self._own:
                self.close()
            raise
        finally:
            self._cancel(under_way)

    def close(self) -> None:
        """Leave the cluster; one that this executor started is shut down."""
        if not self._open:
            return
        self._open = False
        if self._ray is not None:
            self._ray.shutdown()
        if self._guard is not None:
            self._guard.close()

    def __enter__(self) -> "RayExecutor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure(self) -> None:
        has = self._ray.cluster_resources()
        wanted = {name: amount for name, amount in self._wanted.items() if amount}
        slots = min(int(has.get(name, 0) // amount) for name, amount in wanted.items())
        if self._own and not slots:
            raise JobError(f"a job takes {wanted}, but this machine has only {has}")
        self._slots = max(1, slots)  # a cluster with no room may grow when it is asked to
        self._measured = time.monotonic()

    def _refuse_closed(self) -> None:
        if not self._open:
            raise JobError("this executor is closed: make another one")

    def _outcome(self, reference: Any, job: J) -> Done[J, Any] | Failed[J]:
        """What came of a task; that it raises is not the job's doing, see `attempt`."""
        try:
            outcome: Done[J, Any] | Failed[J] = self._ray.get(reference)
        except self._ray.exceptions.WorkerCrashedError:
            lost = f"worker died {self._retries + 1} times"
            return Failed(job, lost, lost, died=True)
        except self._ray.exceptions.RayError as error:
            lost = f"{type(error).__name__}: {error}"
            return Failed(job, lost, " ".join(lost.split()), died=True)
        if isinstance(outcome, Failed):
            return Failed(job, outcome.error, outcome.reason)
        return Done(job, outcome.result, outcome.seconds)

    def _cancel(self, references: Iterable[Any]) -> None:
        """Kill what is under way. A job that is just being handed to a worker may miss it once."""
        left, deadline = list(references), time.monotonic() + _KILLING
        while self._open and left and time.monotonic() < deadline:
            for reference in left:
                self._ray.cancel(reference, force=True)
            _, left = self._ray.wait(left, num_returns=len(left), timeout=_AGAIN)


def _connect(address: str | None, retries: int) -> Any:
    # Before the import: Ray reads them once. Nothing is reported to anybody; a job that needs more
    # memory than there is fails in the end, where Ray would run it again for ever; and no workers
    # are started ahead: if one dies before it is ready, Ray 2.60 would wait for it for ever.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_task_oom_retries", str(retries))
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    try:
        ray = importlib.import_module("ray")  # slow, and an extra: only here
    except ImportError as error:
        raise JobError(
            "running jobs on Ray needs ray: pip install 'transformer-nfn[zoo]', or run them "
            "in this process"
        ) from error
    if ray.is_initialized():
        raise JobError(
            "this process is connected to a Ray cluster already: close that executor, or call "
            "ray.shutdown(), before making another one"
        )
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        options["include_dashboard"] = False
    try:
        with _own_handler():
            ray.init(address="local" if address is None else address, **options)
    except ConnectionError:
        raise JobError(
            f"no Ray cluster answers at {address}. Is that its address, and is Ray of the same "
            "version there? A cluster of `ray start` wants a token: RAY_AUTH_MODE=token, and its "
            "~/.ray/auth_token or RAY_AUTH_TOKEN"
        ) from None
    except Exception as error:  # Ray has no class of its own for this one
        if "timed out during startup" not in str(error):
            raise
        raise JobError(
            "Ray did not start on this machine within its 30 s, perhaps because other programs "
            "use all cores: try again when they have finished, or without Ray"
        ) from error
    return ray


@contextmanager
def _own_handler() -> Iterator[None]:
    """Keep a handler of SIGTERM that a program has: Ray's prints a stack and exits with 15."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if callable(before) and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)
