"""A hub of small checkpoints on all cores: rates, copies, broken files, second run, cost of a file.

    python benchmarks/hub/hub.py --json                 # 100,000 files, 6.5 GB, see --work
    python benchmarks/hub/hub.py --large --json         # 300 files of about 43 MB
    python benchmarks/hub/hub.py --quick --json

Files are read on Ray by `tnfn fingerprint`, compared by `tnfn dedup`. Rates stand against reading
the same files with safetensors alone, in as many processes. Processor time is that of all processes
of a command; start-up is that of a run over 64 files.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.hub.planted import FEW, Hub, files_of, link, plant, templates
from benchmarks.hub.usage import Used, measured
from transformer_nfn.hub import Results

SECOND_RUN, SPREAD, MEMORY = 60.0, 1.15, 2**31
STARTUP = 64
SHARES = (100, 10)  # of all files: 1,000 and 10,000 of 100,000


def tnfn(*words: object) -> Used:
    start = [sys.executable, "-c", "from transformer_nfn.cli import main; main()"]
    return measured([*start, *map(str, words), "--json"])


def bare(paths: list[str]) -> tuple[int, int]:
    """Read every tensor, and no more; files that are none cost a try."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    files = size = 0
    for path in paths:
        try:
            with safe_open(path, "np") as file:
                tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118
        except (SafetensorError, OSError):
            continue
        files += 1
        size += sum(int(np.asarray(tensor).nbytes) for tensor in tensors)
    return files, size


def bare_reading(home: Path, processes: int) -> dict[str, float]:
    paths = list(files_of(home))
    parts = [paths[start::processes] for start in range(processes)]
    # What a fork has imported already takes a fresh process as long as thousands of files.
    context = multiprocessing.get_context("fork" if len(paths) <= FEW else "spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        list(pool.map(bare, [part[:10] for part in parts]))  # imports
        start = time.perf_counter()
        done = list(pool.map(bare, parts))
        seconds = time.perf_counter() - start
    size = sum(size for _, size in done)
    return {"bare_files_a_second": len(paths) / seconds, "bare_bytes_a_second": size / seconds}


def first_run(hub: Hub, out: Path) -> tuple[dict[str, Any], Used]:
    """Fingerprints of all files, and what that took."""
    used = tnfn("fingerprint", hub.home, "--out", out, "--ray")
    found = json.loads(used.stdout)
    figures = {
        "files": found["files"],
        "errors": found["errors"],
        "wall_s": used.wall,
        "files_a_second": found["files"] / used.wall,
        "bytes_read": found["bytes_read"],
        "bytes_a_second": found["bytes_read"] / used.wall,
        "largest_process_bytes": used.largest,
    }
    return figures, used


class Costs:
    """Processor time a file, without start-up, of runs over more and more files.

    Small runs are mostly start-up, and the machine's speed drifts within minutes: they are done in
    pairs, with and without files to speak of, before and after the large ones, and all times are
    taken in units of a fixed piece of work that is done meanwhile.
    """

    def __init__(self, hub: Hub, home: Path, kinds: list[Any], count: int) -> None:
        self._hub, self._home, self._kinds = hub, home, kinds
        self._spent: dict[int, list[Used]] = {}
        self.few = count // SHARES[0]

    def run(self, size: int) -> None:
        """Another run over the first files of the hub."""
        some = self._home / f"nets-{size}"
        if not some.exists():
            link(self._hub, some, size, self._kinds)
        turns = self._spent.setdefault(size, [])
        out = self._home / f"out-{size}-{len(turns)}"
        turns.append(tnfn("fingerprint", some, "--out", out, "--ray"))

    def pairs(self, count: int = 4) -> None:
        """Small runs, some of them nothing but start-up."""
        for _ in range(count):
            self.run(STARTUP)
            self.run(self.few)

    def figures(self, count: int, all_of_it: Used) -> dict[str, float]:
        """Medians of all turns, at the pace of all of them together."""
        self._spent[count] = [all_of_it]
        usual = statistics.median(one.pace for turns in self._spent.values() for one in turns)
        figures: dict[str, float] = {}
        for kind, pace in (("", usual), ("raw_", None)):
            spent = {
                size: statistics.median(one.cpu * (pace or one.pace) / one.pace for one in turns)
                for size, turns in self._spent.items()
            }
            startup = spent.pop(STARTUP)
            costs = {size: 1e3 * (cpu - startup) / (size - STARTUP) for size, cpu in spent.items()}
            figures[f"{kind}startup_cpu_s"] = startup
            for size, cost in sorted(costs.items()):
                figures[f"{kind}cpu_ms_a_file_of_{size}"] = cost
            figures[f"{kind}spread"] = max(costs.values()) / min(costs.values())
        paces = [one.pace for turns in self._spent.values() for one in turns]
        return figures | {"pace_spread": max(paces) / min(paces)}


def judged(hub: Hub, out: Path) -> dict[str, Any]:
    """What `tnfn dedup` says of the fingerprints, against what was planted."""
    used = tnfn("dedup", out)
    found = json.loads(used.stdout)
    groups: dict[int, set[str]] = {}
    for row in found["table"]:
        groups.setdefault(row["network"], set()).add(row["path"])
    said = {frozenset(group) for group in groups.values() if len(group) > 1}
    rows = Results(str(out)).rows(["status"]).to_pydict()
    bad = {p for p, status in zip(rows["path"], rows["status"], strict=True) if status == "broken"}
    return {
        "dedup_s": used.wall,
        "dedup_largest_process_bytes": used.largest,
        "copies_planted": len(hub.copies),
        "copies_found": len(said & hub.copies),
        "false_copies": len(said - hub.copies),
        "related": found["related"],
        "broken_planted": len(hub.broken),
        "broken_that_are_rows": len(bad & hub.broken),
        "sound_called_broken": len(bad - hub.broken),
        "rows": len(rows["path"]),
    }


def again(hub: Hub, out: Path) -> dict[str, Any]:
    """The same commands once more."""
    first, second = tnfn("fingerprint", hub.home, "--out", out, "--ray"), tnfn("dedup", out)
    return {
        "second_run_s": first.wall,
        "second_run_done": json.loads(first.stdout)["done"],
        "second_dedup_s": second.wall,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, help="100,000, or 300 large ones")
    parser.add_argument("--large", action="store_true", help="checkpoints of 43 MB")
    parser.add_argument("--work", type=Path, help="a folder for the files; a temporary one if none")
    parser.add_argument("--quick", action="store_true", help="30 files")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    count = 30 if options.quick else options.files or (300 if options.large else 100_000)
    cores = os.cpu_count() or 1
    home = Path(tempfile.mkdtemp(dir=options.work))
    try:
        kinds = templates(home / "templates", options.large)
        start = time.perf_counter()
        hub = plant(home / "nets", count, kinds, cores)
        print(f"{count} files planted in {time.perf_counter() - start:.0f} s", flush=True)
        out = home / "out"
        costs = Costs(hub, home, kinds, count)
        many = not options.quick and not options.large  # of few files start-up is most
        if many:
            costs.pairs()
        figures, cpu = first_run(hub, out)
        print(json.dumps(figures), flush=True)
        if many:
            costs.run(count // SHARES[1])
            costs.pairs()
            figures |= costs.figures(count, cpu)
            print(json.dumps(figures), flush=True)
        figures |= bare_reading(hub.home, cores)
        for unit in ("files", "bytes"):
            figures[f"bare_{unit}_over_ours"] = (
                figures[f"bare_{unit}_a_second"] / figures[f"{unit}_a_second"]
            )
        figures |= judged(hub, out)
        figures |= again(hub, out)
    finally:
        shutil.rmtree(home)
    for name, value in figures.items():
        print(f"{name:<30} {value:.4g}")
    checks = {
        "every_file_is_a_row": figures["rows"] == figures["files"] == count,
        "every_copy_found": figures["copies_found"] == figures["copies_planted"],
        "no_false_copy": figures["false_copies"] == figures["related"] == 0,
        "every_broken_file_a_row": figures["broken_that_are_rows"] == figures["broken_planted"],
        "no_sound_file_broken": figures["sound_called_broken"] == 0,
        "second_run_time": figures["second_run_s"] <= SECOND_RUN,
        "second_run_does_nothing": figures["second_run_done"] == 0,
        "cost_does_not_grow": figures.get("spread", 1.0) <= SPREAD,
        "memory": figures["largest_process_bytes"] <= MEMORY,
    }
    ok = all(checks.values())
    if options.json:
        targets = {"second_run_s": SECOND_RUN, "spread": SPREAD, "largest_process_bytes": MEMORY}
        print(json.dumps({"figures": figures, "targets": targets, "checks": checks, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
