"""Let nothing of a local Ray cluster outlive its driver, even if that is killed.

On Linux the kernel kills the raylet and the GCS along with the driver, and the workers end when
their raylet is gone. But the raylet's two agents first try to report its death to the GCS, which is
dead too, and give up only after 60 s (`publish_error_to_driver` in Ray 2.60, a fixed number). So a
small process waits at a pipe that ends with the driver, and kills them. It starts before Ray does,
since a driver may be killed while Ray starts; it knows them by a mark in their environment.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

_NAME = "TNFN_CLUSTER"
#: All processes of this user have their environment here, as it was when they began.
_ENVIRONMENTS = "/proc/self/environ"

# Until a look finds none, since a raylet may start more while it ends; but not for ever: a process
# that waits for a disk cannot be killed.
_WAIT_AND_KILL = """
import glob, os, signal, sys, time
sys.stdin.buffer.read()
for _ in range(200):
    found = False
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if sys.argv[1].encode() in file.read():
                    found = True
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)
        except OSError:
            pass
    if not found:
        break
    time.sleep(0.05)
"""


class Guard:
    """A process that outlives this one to kill what it started with a mark.

    It ends with this process, or when it is closed. Where there is no /proc it does nothing.
    """

    def __init__(self) -> None:
        self._mark = uuid4().hex
        self._process: subprocess.Popen[bytes] | None = None
        if os.path.exists(_ENVIRONMENTS):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _WAIT_AND_KILL, f"{_NAME}={self._mark}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal is not for it
            )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Whatever is started meanwhile, and what that starts, ends with this process."""
        # Ray's processes give themselves names, which would be written over their environment.
        os.environ.setdefault("SPT_NOENV", "1")
        os.environ[_NAME] = self._mark
        try:
            yield
        finally:
            del os.environ[_NAME]

    def close(self) -> None:
        """Kill what is left, and wait for it."""
        if self._process is not None:
            self._process.communicate()  # closes its stdin
            self._process = None
