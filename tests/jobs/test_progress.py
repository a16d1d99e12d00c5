import io
import time

import pytest
from rich.console import Console

from transformer_nfn.jobs import Done, Failed, track
from transformer_nfn.jobs.progress import Meter


class Clock:
    """`time.monotonic`, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def test_the_rate_is_that_of_this_session(clock: Clock):
    meter = Meter(total=100, done_already=40)
    assert (meter.rate, meter.eta) == (0.0, None)
    assert meter.text() == "40/100, ETA -:--:--"
    clock.now += 60
    meter.add(10, failed=False)
    assert meter.rate == 10 / 60
    assert meter.eta == 300
    assert meter.text() == "50/100, 10.0/min, ETA 0:05:00"
    clock.now += 45  # between outcomes the clock runs down, the rate stays
    assert meter.text() == "50/100, 10.0/min, ETA 0:04:15"
    clock.now += 1000
    assert meter.eta == 0


def test_what_failed_is_not_done_but_nobody_waits_for_it(clock: Clock):
    meter = Meter(total=30, done_already=0)
    clock.now += 5
    meter.add(10, failed=False)
    meter.add(10, failed=True)
    assert meter.text() == "10/30, 10 failed, 2.0/s, ETA 0:00:05"
    meter.add(10, failed=True)
    assert meter.eta == 0


def test_more_can_be_said(clock: Clock):
    file, read = io.StringIO(), ["1 MB"]
    told = track(
        outcomes(clock, 3, 40.0), 3, detail=lambda: f"{read[0]} read", console=Console(file=file)
    )
    for _ in told:
        read[0] = "2 MB"
    lines = file.getvalue().splitlines()
    assert "1 MB read" in lines[0]
    assert all("2 MB read" in line for line in lines[1:])


def outcomes(clock: Clock, count: int, seconds: float):
    for job in range(count):
        clock.now += seconds
        yield Failed(job, "no") if job == 1 else Done(job, None, seconds)


def test_without_a_terminal_a_line_at_most_every_30_seconds(clock: Clock):
    file = io.StringIO()
    tracked = track(
        outcomes(clock, 8, 10.0),
        100,
        20,
        "training [runs]",
        weight=lambda outcome: 2,
        console=Console(file=file, width=20),
    )
    assert [outcome.job for outcome in tracked] == list(range(8))
    assert file.getvalue().splitlines() == [
        "training [runs] 22/100, 12.0/min, ETA 0:06:30 elapsed 0:00:10",
        "training [runs] 26/100, 2 failed, 9.0/min, ETA 0:08:00 elapsed 0:00:40",
        "training [runs] 32/100, 2 failed, 10.3/min, ETA 0:06:25 elapsed 0:01:10",
        "training [runs] 34/100, 2 failed, 10.5/min, ETA 0:06:05 elapsed 0:01:20",
    ]


def test_at_a_terminal_a_bar(clock: Clock):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120, color_system=None)
    assert len(list(track(outcomes(clock, 8, 10.0), 8, describe="training", console=console))) == 8
    last = file.getvalue().splitlines()[-2]  # after it the cursor is shown again
    assert "training" in last
    assert "━" in last
    assert "7/8, 1 failed, 5.2/min, ETA 0:00:00" in last


def test_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]):
    list(track(iter([Done(1, None, 0.1)]), 1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("1/1, ")


def test_disabled_it_shows_nothing(capsys: pytest.CaptureFixture[str]):
    assert len(list(track(iter([Done(1, None, 0.1)]), 1, disable=True))) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_leaving_early_closes_what_is_tracked(terminal: bool):
    closed = []

    def source():
        try:
            for job in range(10):
                yield Done(job, None, 0.0)
        finally:
            closed.append(True)

    console = Console(file=io.StringIO(), force_terminal=terminal)
    tracked = track(source(), 10, console=console)
    next(tracked)
    tracked.close()
    assert closed == [True]
