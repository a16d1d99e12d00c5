"""How many threads a job may use."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread(device: str) -> Iterator[None]:
    """On a CPU, one thread: products this small gain little from a second, which others can use."""
    import torch  # only here: executors and folders need no torch, and every worker imports them

    threads = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def no_subnormals() -> Iterator[None]:
    """Treat subnormal numbers as zero on this thread: each costs a hundred times as much as others.

    The attention of a trained net is full of them, after a softmax of scores far apart.
    """
    import torch

    before = (torch.tensor([1e-30]) * 1e-10).item() == 0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
