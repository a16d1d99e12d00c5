"""What a command and all its processes use: processor time, and memory of the largest."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from tempfile import TemporaryFile

import numpy as np

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
_TEXT = json.dumps({str(n): {"shape": [n, 24], "data_offsets": [n, n + 1]} for n in range(12)})


@dataclass
class Used:
    """By a command.

    Attributes:
        stdout: What it printed.
        wall: Seconds.
        cpu: Seconds of all processes, as they were last seen.
        largest: Most resident bytes of one process.
        pace: Seconds that a fixed piece of work took meanwhile: the speed of a shared machine
            drifts by a third within minutes, and processor time with it.
    """

    stdout: str
    wall: float
    largest: int = 0
    pace: float = 0.0
    _cpu: dict[int, float] = field(default_factory=dict)

    @property
    def cpu(self) -> float:
        return sum(self._cpu.values())


def measured(command: Sequence[str], every: float = 0.1) -> Used:
    """Run a command to its end and look at its processes all the time.

    A process is counted as it was last seen, so up to `every` seconds of its end are missed.

    Raises:
        RuntimeError: If it fails.
    """
    start = time.perf_counter()
    used = Used("", 0.0)
    # Files, not pipes: nobody reads while it runs, and a full pipe would stop it.
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        known, paces = {process.pid}, []
        while process.poll() is None:
            _look(used, known)
            paces.append(_pace())
            time.sleep(every)
        used.pace = sum(paces) / len(paces)
        used.wall = time.perf_counter() - start
        out.seek(0)
        err.seek(0)
        used.stdout = out.read()
        if process.returncode:
            said = err.read()[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {said}")
    return used


def _pace() -> float:
    """Small matrix products and some JSON, as reading a small checkpoint is: about 2 ms."""
    start = time.thread_time()
    matrix = np.ones((24, 40), dtype=np.float32)
    for _ in range(100):
        json.loads(_TEXT)
        np.linalg.norm(matrix @ matrix.T)
    return time.thread_time() - start


def _look(used: Used, known: set[int]) -> None:
    """Processes whose parents are known; those that lost their parents stay known."""
    parents, seconds, sizes = {}, {}, {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat") as file:
                    words = file.read().rpartition(")")[2].split()
            except OSError:  # gone since
                continue
            pid = int(name)
            parents[pid], sizes[pid] = int(words[1]), int(words[21]) * PAGE
            seconds[pid] = (int(words[11]) + int(words[12])) / TICK
    grown = True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in known} - known
        known |= children
        grown = bool(children)
    for pid in known & seconds.keys():
        used._cpu[pid] = max(used._cpu.get(pid, 0.0), seconds[pid])
        used.largest = max(used.largest, sizes[pid])
