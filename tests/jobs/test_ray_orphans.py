import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_nfn.jobs.ray_orphans import Guard

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs /proc")

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
DRIVER = f"""
import os, subprocess, time
from transformer_nfn.jobs.ray_orphans import Guard
guard = Guard()
with guard.marking():
    print(subprocess.Popen({SLEEP!r}, start_new_session=True).pid, flush=True)
    time.sleep(60)  # killed while Ray starts
"""


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_what_was_started_with_the_mark_is_killed_and_nothing_else() -> None:
    guard = Guard()
    with guard.marking():
        marked = subprocess.Popen(SLEEP)
    other = subprocess.Popen(SLEEP)
    guard.close()
    assert marked.wait(timeout=10) == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
    guard.close()


def test_it_outlives_a_driver_that_is_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    driver.kill()
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 20
    while _is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
