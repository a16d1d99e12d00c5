"""What a piece of work costs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Cost:
    """Filled in when the work is done.

    Attributes:
        seconds: Of the CPU, in this process: work is done by one thread, so this is its time on a
            quiet machine, whatever else runs.
    """

    seconds: float = 0.0


@contextmanager
def measured() -> Iterator[Cost]:
    """Measure what is done inside."""
    cost, begun = Cost(), time.process_time()
    yield cost
    cost.seconds = time.process_time() - begun
