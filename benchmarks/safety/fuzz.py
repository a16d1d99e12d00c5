"""Every reader of bytes from outside, fed with a million inputs that its author did not think of.

    python benchmarks/safety/fuzz.py
    python benchmarks/safety/fuzz.py --quick --json
    python benchmarks/safety/fuzz.py --only header --keep FOLDER

atheris (libFuzzer) makes them: guided by the branches of the reader's own modules, from sound
files, by mutators that know the formats. Each reader runs in a process of its own, in a folder in
memory.
A reader may give a value or raise its room's own error; anything else is a finding: another
exception, a crash of the process, more than 2 s more than 300 MB above the level after the seeds,
or a tripped wire: code run or unpickled, a connection, a file written elsewhere. Afterwards the
inputs that the engine kept are read once more under a tracer, which says how many lines of the
modules they reach. `--keep` leaves inputs, findings and the engine's log in a folder.
"""

import argparse
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.safety.fuzzing import checkpoints as fuzz_checkpoints
from benchmarks.safety.fuzzing import data as fuzz_data
from benchmarks.safety.fuzzing import folders as fuzz_folders
from benchmarks.safety.fuzzing import models as fuzz_models
from benchmarks.safety.fuzzing.coverage import Lines
from benchmarks.safety.fuzzing.engine import MEGABYTES, SECONDS, Reader, Record, fuzz

READERS = [
    reader
    for module in (fuzz_checkpoints, fuzz_folders, fuzz_models, fuzz_data)
    for reader in module.READERS
]
TOTAL = 1_000_000
LEAVE = 10.0  # seconds for a process whose inputs are all read
#: Readers import these when they need them: once here, not in each process.
IMPORTED = ("scipy.optimize", "scipy.sparse.csgraph", "scipy.spatial", "scipy.stats")
QUICK = 800  # a quick run has so many times fewer inputs


def in_child(work: Any, log: Path, is_done: Callable[[], bool] = lambda: False) -> int:
    """Run a function in a forked process, so that imports are paid once; its exit status.

    libFuzzer ends by exit(), where Arrow's threads and Python may wait for each other: a process
    whose work is done is ended.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(out, 1)
            os.dup2(out, 2)
            work()
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    finished = None
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if finished is None and is_done():
            finished = time.monotonic()
        if finished is not None and time.monotonic() - finished > LEAVE:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 0
        time.sleep(0.02)


def measure(readers: list[Reader], home: Path) -> None:
    """Which lines each corpus reaches; all in one process, since nothing of it is judged."""
    for number, reader in enumerate(readers):
        folder = home / str(number)
        os.chdir(folder)
        reader.seeds()  # makes what inputs are held against
        inputs = sorted((folder / "corpus").iterdir(), key=lambda path: path.stat().st_size)
        with Lines(reader.modules) as lines:
            for path in inputs[:400]:
                with suppress(Exception):  # the fuzzing has judged it
                    reader.read(path.read_bytes())
        found = {"lines": len(lines.all), "reached": len(lines.all & lines.reached)}
        text = json.dumps({**found, "missed": lines.missed()})
        (folder / "lines.json").write_text(text)


def engine_figures(log: Path) -> dict[str, int]:
    """What libFuzzer says at its end: branches, features and inputs that it kept."""
    found = {"branches": 0, "features": 0, "kept": 0}
    names = {"cov:": "branches", "ft:": "features", "corp:": "kept"}
    for line in log.read_text(errors="replace").splitlines():
        words = line.split()
        if line.startswith("#"):
            for word, after in pairwise(words):
                if word in names:
                    found[names[word]] = int(after.partition("/")[0])
    return found


def run(reader: Reader, runs: int, seed: int, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    start = time.perf_counter()
    record = folder / "record"

    def is_done() -> bool:
        return record.exists() and Record.count_of(record) >= runs

    status = in_child(lambda: fuzz(reader, runs, seed, folder), folder / "log", is_done)
    seconds = time.perf_counter() - start
    found = Record.load(record) if record.exists() else {"inputs": 0, "accepted": 0, "slowest": 0.0}
    found = {"refused": {}, "findings": {}, "megabytes_above": 0.0} | found
    if status or found["inputs"] < runs:
        last = (folder / "log").read_text(errors="replace").splitlines()[-1:]
        found["findings"]["the process ended"] = {"count": 1, "message": f"{status}: {last}"}
    figures = {**found, **engine_figures(folder / "log")}
    return {**figures, "slowest": round(found["slowest"], 3), "seconds": round(seconds, 1)}


def covered(readers: list[Reader], home: Path, verbose: bool) -> dict[str, dict[str, int]]:
    """Lines of each reader's modules, and how many of them its corpus reaches."""
    failed = in_child(lambda: measure(readers, home), home / "log-lines")
    if failed:
        print((home / "log-lines").read_text())
        raise SystemExit("the lines could not be counted")
    found = {}
    for number, reader in enumerate(readers):
        lines = json.loads((home / str(number) / "lines.json").read_text())
        missed = lines.pop("missed")
        share = 100 * lines["reached"] / lines["lines"]
        print(f"{reader.name:<18}{lines['reached']:>5} of {lines['lines']:>4} lines, {share:.0f} %")
        if verbose and missed:
            print(f"    not reached: {' '.join(missed)}")
        found[reader.name] = lines
    return found


def show(reader: Reader, found: dict[str, Any]) -> None:
    print(
        f"{reader.name:<18}{found['inputs']:>8,} inputs {found['seconds']:>6.1f} s  "
        f"accepted {found['accepted']:>7,}  refused {sum(found['refused'].values()):>7,} "
        f"({', '.join(sorted(found['refused'])) or '-'})  "
        f"branches {found['branches']}  features {found['features']}  kept {found['kept']}  "
        f"slowest {found['slowest']:.2f} s  +{found['megabytes_above']:.0f} MB",
        flush=True,
    )
    for what, one in found["findings"].items():
        print(f"    FOUND {what} ({one['count']}): {one['message']!r:.300}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the inputs")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--only", action="append", help="a reader by its name; repeatable")
    parser.add_argument("--share", type=float, default=1.0, help="of the inputs of a full run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave corpus, findings and logs here")
    parser.add_argument("--verbose", action="store_true", help="name lines that were not reached")
    options = parser.parse_args()
    for name in IMPORTED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    share = options.share / (QUICK if options.quick else 1)
    chosen = [r for r in READERS if not options.only or r.name in options.only]
    memory = Path("/dev/shm")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(
        prefix="fuzz", dir=memory if memory.is_dir() else None
    ) as name:
        home = Path(name)
        readers = {}
        for number, reader in enumerate(chosen):
            runs = max(int(reader.runs * share), 20)
            readers[reader.name] = run(reader, runs, options.seed, home / str(number))
            show(reader, readers[reader.name])
        for name, lines in covered(chosen, home, options.verbose).items():
            readers[name] |= lines
        if options.keep:
            shutil.copytree(home, options.keep, dirs_exist_ok=True)
    inputs = sum(found["inputs"] for found in readers.values())
    findings = [f"{name}: {what}" for name, found in readers.items() for what in found["findings"]]
    slowest = max(found["slowest"] for found in readers.values())
    above = max(found["megabytes_above"] for found in readers.values())
    lines, reached = (sum(found[key] for found in readers.values()) for key in ("lines", "reached"))
    print(
        f"{inputs:,} inputs over {len(readers)} readers in {time.perf_counter() - start:.0f} s: "
        f"{len(findings)} findings, {100 * reached / max(lines, 1):.0f} % of {lines} lines, "
        f"slowest {slowest:.2f} s, +{above:.0f} MB"
    )
    figures = {
        "inputs": inputs,
        "readers": readers,
        "findings": findings,
        "slowest_seconds": slowest,
        "megabytes_above": above,
        "lines": lines,
        "lines_reached": reached,
        "seconds": round(time.perf_counter() - start),
    }
    targets = {
        "inputs": int(TOTAL * share) if not options.only else 0,
        "findings": 0,
        "seconds_for_an_input": SECONDS,
        "megabytes_above": MEGABYTES,
    }
    checks = {
        "inputs": inputs >= targets["inputs"],
        "findings": not findings,
        "every reader accepts and refuses": all(
            f["accepted"] and f["refused"] for f in readers.values()
        ),
        "memory": above <= MEGABYTES,
    }
    ok = all(checks.values())
    if options.json:
        print(json.dumps({"figures": figures, "targets": targets, "checks": checks, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
