"""What becomes of a local cluster when the process that started it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = """
import signal, sys, time
from pathlib import Path
from transformer_nfn.jobs import RayExecutor

# Whoever runs the tests in the background may have switched Ctrl-C off for them.
signal.signal(signal.SIGINT, signal.default_int_handler)

def sleep(path):
    path.touch()
    time.sleep(300)

executor = RayExecutor()
next(executor.run(sleep, [Path(sys.argv[1])]))
"""


def processes() -> dict[int, tuple[int, str]]:
    """Parent and state of each process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        found[int(path.parent.name)] = (int(fields[1]), fields[0])
    return found


def descendants(of: int) -> set[int]:
    family = {of}
    everyone = processes()
    while more := {pid for pid, (parent, _) in everyone.items() if parent in family} - family:
        family |= more
    return family - {of}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is Linux that sees to it")
@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_driver(tmp_path: Path, kind: signal.Signals):
    marker = tmp_path / "marker"
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(marker)], stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not marker.exists():
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        family = descendants(driver.pid)
        assert len(family) > 5  # GCS, raylet, its agents, the workers
        os.kill(driver.pid, kind)
        driver.wait(timeout=30)
        deadline = time.monotonic() + 20
        while left := {pid for pid in family if processes().get(pid, (0, "Z"))[1] != "Z"}:
            assert time.monotonic() < deadline, left
            time.sleep(0.2)
    finally:
        driver.kill()
        driver.wait()
