"""Run independent jobs: what an executor is, and the one that needs no cluster.

A job is a small value that can be pickled; the function does its work and commits what comes of it
(see `ShardFolder`). A job may run more than once, when a worker died, so it must be idempotent.
"""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

J = TypeVar("J")
R = TypeVar("R")


@dataclass(frozen=True)
class Done(Generic[J, R]):
    """A job that ended: its result, and how long it ran where it ran."""

    job: J
    result: R
    seconds: float


@dataclass(frozen=True)
class Failed(Generic[J]):
    """A job that did not end.

    Attributes:
        job: The job.
        error: The traceback of its exception, or what became of its worker.
        reason: The same in one line.
        died: Whether its worker was lost, so that another try may end; an exception comes again.
    """

    job: J
    error: str
    reason: str = ""
    died: bool = False


@runtime_checkable
class Executor(Protocol):
    """Where jobs run. Used as a context manager, it is closed at the end."""

    @property
    def slots(self) -> int:
        """How many jobs run at once."""

    def run(
        self, function: Callable[[J], R], jobs: Iterable[J]
    ) -> Iterator[Done[J, R] | Failed[J]]:
        """Run all jobs and give each outcome as it comes, in order of completion.

        Jobs are drawn from the iterable as places become free, and only while the outcomes are
        drawn in turn. A job that fails stops no other.
        """

    def close(self) -> None:
        """End what the executor started."""

    def __enter__(self) -> "Executor": ...

    def __exit__(self, *_: object) -> None: ...


class InProcess:
    """One job after another in this process.

    Example:
        >>> with InProcess() as executor:
        ...     for outcome in executor.run(lambda job: 6 // job, [2, 0]):
        ...         print(type(outcome).__name__, outcome.job)
        Done 2
        Failed 0
    """

    slots = 1

    def run(
        self, function: Callable[[J], R], jobs: Iterable[J]
    ) -> Iterator[Done[J, R] | Failed[J]]:
        """Run all jobs in their order. What is no `Exception`, such as Ctrl-C, passes through."""
        for job in jobs:
            yield attempt(function, job)

    def close(self) -> None:
        """Nothing to end."""

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attempt(function: Callable[[J], R], job: J) -> Done[J, R] | Failed[J]:
    """Run one job, an exception being an outcome as well."""
    start = time.perf_counter()
    try:
        result = function(job)
    except Exception as error:
        return Failed(job, traceback.format_exc(), _in_one_line(error))
    return Done(job, result, time.perf_counter() - start)


def _in_one_line(error: Exception) -> str:
    """What is wrong; errors that are not ours, nor the system's, with the name of their class."""
    known = isinstance(error, OSError) or type(error).__module__.startswith("transformer_nfn.")
    text = " ".join(str(error).split())
    return text if known and text else f"{type(error).__name__}: {text}".rstrip(": ")
