"""Bulk fingerprints by Ray Core tasks, as they run, and by Ray Data with actors.

    python benchmarks/hub/engines.py --json
    python benchmarks/hub/engines.py --quick --json

The same batches do the same work and commit the same shards; a cluster of its own for each turn.
Start-up of Ray is counted apart, imports in the workers are not. No target: it backs a decision.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.hub.planted import plant, templates
from transformer_nfn.hub import Bulk, FingerprintTask
from transformer_nfn.hub.planning import deal
from transformer_nfn.hub.work import work_batch
from transformer_nfn.jobs import RayExecutor


def by_tasks(bulk: Bulk) -> float:
    with RayExecutor() as executor:
        start = time.perf_counter()
        bulk.run(executor)
        return time.perf_counter() - start


class Worker:
    """An actor; one batch of paths a row."""

    def __init__(self, task: FingerprintTask, url: str) -> None:
        self._work = partial(work_batch, task, url, True)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        return {"files": [self._work(batch).files for batch in rows["item"]]}


def by_ray_data(bulk: Bulk) -> float:
    with RayExecutor():
        import ray

        ray.data.DataContext.get_current().enable_progress_bars = False
        start = time.perf_counter()
        bulk.results.claim()
        batches = list(deal(bulk.open, bulk.results.next_run))
        data = ray.data.from_items(batches, override_num_blocks=len(batches))
        arguments = (bulk.task, bulk.results.url)
        actors = ray.data.ActorPoolStrategy(size=os.cpu_count() or 1)
        done = data.map_batches(
            Worker, fn_constructor_args=arguments, batch_size=1, compute=actors, num_cpus=1
        )
        bulk.tally.files = sum(row["files"] for row in done.iter_rows())
        return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="200 files, one turn")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    count, turns = (200, 1) if options.quick else (options.files, 3)
    home = Path(tempfile.mkdtemp())
    walls: dict[str, list[float]] = {"tasks": [], "ray_data": []}
    same = []
    try:
        hub = plant(home / "nets", count, templates(home / "templates"))
        for turn in range(turns):
            rows = []
            for name, run in (("tasks", by_tasks), ("ray_data", by_ray_data)):
                out = home / f"{name}-{turn}"
                bulk = Bulk(FingerprintTask(), [str(hub.home)], str(out))
                walls[name].append(run(bulk))
                columns = ["status", "version", "numbers"]
                found = bulk.results.rows(columns, bulk.task.schema)
                rows.append(found.sort_by("path"))
            same.append(rows[0].equals(rows[1]) and len(rows[0]) == count)
    finally:
        shutil.rmtree(home)
    figures = {f"{name}_s": sorted(some)[len(some) // 2] for name, some in walls.items()}
    figures["ray_data_over_tasks"] = figures["ray_data_s"] / figures["tasks_s"]
    print(figures)
    if options.json:
        ok = all(same)
        checks = {"same_rows": ok}
        print(json.dumps({"figures": figures, "targets": {}, "checks": checks, "ok": ok}))
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
