"""Progress of many jobs at the command line, on stderr."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from transformer_nfn.escaping import for_terminal
from transformer_nfn.jobs.executors import Done, Failed

Outcome = TypeVar("Outcome", bound=Done[Any, Any] | Failed[Any])

#: Seconds between two lines where there is no terminal: a log is read later, by people.
QUIET = 30.0


class Meter:
    """Counts units of work, and says how fast they come and when they will be done.

    The rate is that of this session alone, until the last outcome: what was done already took no
    time now, and rich's own rate, of the last seconds, knows nothing of jobs that take minutes.

    Args:
        total: Units in all, those done already among them.
        done_already: Units that were done before this session.
        detail: What else there is to say, in words.
    """

    def __init__(
        self, total: int, done_already: int, detail: Callable[[], str] | None = None
    ) -> None:
        self._detail = detail
        self.total = total
        self.done_already = done_already
        self.done = 0
        self.failed = 0
        self._start = self._last = time.monotonic()

    def add(self, units: int, *, failed: bool) -> None:
        """Count an outcome."""
        self._last = time.monotonic()
        if failed:
            self.failed += units
        else:
            self.done += units

    @property
    def rate(self) -> float:
        """Units a second; 0 before the first."""
        elapsed = self._last - self._start
        return self.done / elapsed if elapsed > 0 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds until all is done; None before the first unit."""
        left = self.total - self.done_already - self.done - self.failed
        if left <= 0:
            return 0.0
        if not self.rate:
            return None
        return max(0.0, left / self.rate - (time.monotonic() - self._last))

    def text(self) -> str:
        """Count, failures, rate and what is left, in words: ``12/100, 4.0/min, ETA 0:22:00``."""
        parts = [f"{self.done_already + self.done}/{self.total}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.rate:
            slow = self.rate < 1
            parts.append(f"{self.rate * 60:.1f}/min" if slow else f"{self.rate:.1f}/s")
        eta = self.eta
        parts.append("ETA -:--:--" if eta is None else f"ETA {_clock(eta)}")
        if self._detail is not None:
            parts.append(self._detail())
        return ", ".join(parts)


def track(
    outcomes: Iterable[Outcome],
    total: int,
    done_already: int = 0,
    describe: str = "",
    *,
    disable: bool = False,
    weight: Callable[[Outcome], int] | None = None,
    detail: Callable[[], str] | None = None,
    console: Console | None = None,
) -> Iterator[Outcome]:
    """Pass outcomes on, and show on stderr how far they are.

    A bar at a terminal; elsewhere a line with an outcome, at most one every 30 s, and one at the
    end.

    Args:
        outcomes: What `Executor.run` gives.
        total: Units of work in all, those done already among them.
        done_already: Units done in earlier sessions; they count, but not for the rate.
        describe: What is being done, in a few words.
        disable: Show nothing.
        weight: Units that an outcome counts for; one if None.
        detail: Further words, asked for each time the progress is shown.
        console: Where to write instead of stderr.
    """
    if disable:
        yield from outcomes
        return
    console = console or Console(stderr=True)
    describe = for_terminal(describe)
    meter = Meter(total, done_already, detail)
    show = _bar if console.is_terminal else _lines
    yield from show(_counted(outcomes, meter, weight), meter, describe, console)


def _counted(
    outcomes: Iterable[Outcome], meter: Meter, weight: Callable[[Outcome], int] | None
) -> Iterator[Outcome]:
    for outcome in outcomes:
        meter.add(1 if weight is None else weight(outcome), failed=isinstance(outcome, Failed))
        yield outcome


def _bar(
    outcomes: Iterable[Outcome], meter: Meter, describe: str, console: Console
) -> Iterator[Outcome]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _MeterColumn(meter))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task(describe, total=meter.total, completed=meter.done_already)
        for outcome in outcomes:
            progress.update(task, completed=meter.done_already + meter.done)
            yield outcome


def _lines(
    outcomes: Iterable[Outcome], meter: Meter, describe: str, console: Console
) -> Iterator[Outcome]:
    start = time.monotonic()
    shown = -QUIET

    def line() -> None:
        words = [describe, meter.text(), f"elapsed {_clock(time.monotonic() - start)}"]
        console.print(" ".join(words).strip(), markup=False, highlight=False, soft_wrap=True)

    pending = False
    try:
        for outcome in outcomes:
            pending = time.monotonic() - start - shown < QUIET
            if not pending:
                shown = time.monotonic() - start
                line()
            yield outcome
    finally:
        if pending:
            line()


class _MeterColumn(ProgressColumn):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def render(self, task: Task) -> Text:
        return Text(self._meter.text(), style="progress.data.speed")


def _clock(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
