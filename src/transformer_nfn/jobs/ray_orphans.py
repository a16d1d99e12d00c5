"""Let nothing of a local Ray cluster outlive its driver, even if that is killed.

On Linux the kernel kills the raylet and the GCS along with the driver, and the workers end when
their raylet is gone. But the raylet's two agents first try to report its death to the GCS, which is
dead too, and give up only after 60 s (`publish_error_to_driver` in Ray 2.60, a fixed number). So a
small process waits at a pipe that ends with the driver, and kills them.
"""

import os
import subprocess
import sys
from pathlib import Path

# Arguments: pairs of a process id and its start time, which together never name another process.
_WAIT_AND_KILL = """
import os, signal, sys
sys.stdin.buffer.read()
for pid, started in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[19].decode() == started:
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


def guard_orphans() -> subprocess.Popen[bytes] | None:
    """Start the process that outlives this one to kill what its raylet started so far.

    To be called when Ray has started. It ends with this process, or when its stdin is closed.
    """
    processes = _processes()
    ours = {pid for pid, (name, parent, _) in processes.items() if parent == os.getpid()}
    raylets = {pid for pid in ours if processes[pid][0] == "raylet"}
    children = [(pid, at) for pid, (_, parent, at) in processes.items() if parent in raylets]
    if not children:
        return None
    arguments = [str(number) for child in children for number in child]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WAIT_AND_KILL, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C at the terminal is not for it
    )


def _processes() -> dict[int, tuple[str, int, int]]:
    """Name, parent and start time of each process; nothing where there is no /proc."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text(errors="replace").rpartition(")")
        except OSError:  # it has just ended
            continue
        pid, _, name = head.partition(" (")
        fields = tail.split()
        found[int(pid)] = (name, int(fields[1]), int(fields[19]))
    return found
