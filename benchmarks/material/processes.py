"""Processes of a benchmark's children, found in /proc: whom to kill, and who was left behind."""

import importlib.util
import os
import time
from pathlib import Path


def below(ancestor: int, names: tuple[bytes, ...]) -> list[int]:
    """Processes below another one whose command line starts with one of some names."""
    parents, lines = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text(errors="replace")
            lines[int(entry.name)] = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # gone meanwhile
        parents[int(entry.name)] = int(status[status.rindex(")") + 2 :].split()[1])
    found = []
    for pid, line in lines.items():
        above = pid
        while line.startswith(names) and above > 1 and above != ancestor:
            above = parents.get(above, 0)
        if pid != ancestor and above == ancestor:
            found.append(pid)
    return found


def workers(driver: int) -> list[int]:
    """Those of a Ray driver that run or await a job; Ray's own agents are no workers."""
    return below(driver, (b"ray::attempt", b"ray::IDLE"))


def raylets(driver: int) -> list[int]:
    """The raylet of a Ray driver that has a cluster of its own."""
    home = importlib.util.find_spec("ray").submodule_search_locations[0]
    return below(driver, (os.fsencode(f"{home}/core/src/ray/raylet/raylet"),))


def of_session(sessions: set[int], mark: str) -> list[int]:
    """Processes of some sessions, or with a word in their environment; none that are dead.

    Who leaves a session keeps its environment, unless it writes its own name over it.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            inside = int(fields[3]) in sessions or mark.encode() in (entry / "environ").read_bytes()
        except OSError:
            continue  # gone meanwhile, or somebody else's
        if inside and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def left_behind(sessions: set[int], mark: str, patience: float) -> list[str]:
    """Those that are still there after some seconds, by their command lines."""
    end = time.monotonic() + patience
    while (pids := of_session(sessions, mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80] for pid in pids]
