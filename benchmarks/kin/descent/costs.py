"""What each method costs on one pair: seconds, and how far the memory of its process grows."""

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.kin.descent.methods import METHODS, File
from benchmarks.safety.hostile import memory


def costs(one: Path, two: Path) -> dict[str, dict[str, float]]:
    """Of all methods, each in a process that has done nothing before."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return {name: pool.submit(cost, name, one, two).result() for name in METHODS}


def cost(name: str, one: Path, two: Path) -> dict[str, float]:
    """Of one method, here."""
    torch.set_num_threads(1)
    before, begin = memory("VmHWM"), time.perf_counter()
    METHODS[name](File(one), File(two))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "megabytes": memory("VmHWM") - before}
