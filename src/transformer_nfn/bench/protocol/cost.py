"""What a piece of work costs: CPU seconds and memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Cost:
    """Filled in when the work is done.

    Attributes:
        cpu_seconds: Of this process: work is done by one thread, so this is its time on a quiet
            machine, whatever else runs.
        peak_bytes: By how much memory grew at its highest; None where the system does not say.
    """

    cpu_seconds: float = 0.0
    peak_bytes: int | None = None


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure what is done inside."""
    cost = Cost()
    before = _memory("VmRSS") if _forget_peak() else None
    begun = time.process_time()
    yield cost
    cost.cpu_seconds = time.process_time() - begun
    peak = _memory("VmHWM")
    if before is not None and peak is not None:
        cost.peak_bytes = max(0, peak - before)


def _forget_peak() -> bool:
    """Make the kernel forget the highest memory so far (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _memory(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None
