"""Jobs of a benchmark on several processes, or here where one is enough."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def spread_over(processes: int) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` in any order; with one process nothing is imported a second time."""
    if processes == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool.imap_unordered
