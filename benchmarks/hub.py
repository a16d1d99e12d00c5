"""Bulk work on many small files: first run, second run, what changed, bad files, kill -9, memory.

    python benchmarks/hub.py --json                 # 100,000 files, in this process
    python benchmarks/hub.py --ray --json           # the same on all cores
    python benchmarks/hub.py --quick --json

The files are links to 64 nets, every hundredth is one of five bad ones. Processor time for a file
is compared between a tenth of the files and all of them.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.checkpoints import made
from transformer_nfn.hub import Bulk, FingerprintTask, Results
from transformer_nfn.jobs import InProcess, RayExecutor

SECOND_RUN, GROWTH, MEMORY_MB = 60.0, 1.2, 2048
BAD = {
    "empty": b"",
    "short": b"no",
    "pickle": b"\x80\x02" + b"a" * 100,
    "long header": (2**40).to_bytes(8, "little") + b"{" * 100,
    "no json": (8).to_bytes(8, "little") + b"{\xff\xff\xff\xff\xff\xff}",
}


def plant(home: Path, count: int) -> Path:
    """Folders of 100 links each, one of them to a bad file."""
    seeds, nets = home / "seeds", home / "nets"
    for number in range(64):
        made.zoo_net(seeds / f"{number}.safetensors", "residual", number)
    for name, content in BAD.items():
        (seeds / f"{name}.bad").write_bytes(content)
    bad = sorted(seeds.glob("*.bad"))
    for number in range(count):
        folder = nets / f"{number // 100:05d}"
        if number % 100 == 0:
            folder.mkdir(parents=True)
        source = bad[number // 100 % len(bad)] if number % 100 == 0 else seeds / (
            f"{number % 64}.safetensors"
        )  # fmt: skip
        os.link(source, folder / f"{number}.safetensors")
    return nets


def peak_mb() -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 1e3


def command(source: Path, out: Path) -> list[str]:
    words = ["from transformer_nfn.cli import main; main()", "fingerprint", str(source)]
    return [sys.executable, "-c", *words, "--out", f"{out}/", "--json"]


def first_runs(nets: Path, home: Path, count: int) -> dict[str, float]:
    """A tenth of the files and all of them, in this process."""
    figures: dict[str, float] = {}
    tenth = home / "tenth"
    tenth.mkdir()
    for folder in sorted(nets.iterdir())[: max(1, count // 1000)]:
        (tenth / folder.name).mkdir()
        for file in folder.iterdir():
            os.link(file, tenth / folder.name / file.name)
    for name, source in (("tenth", tenth), ("all", nets)):
        start, cpu = time.perf_counter(), time.process_time()
        bulk = Bulk(FingerprintTask(), [str(source)], str(home / f"out-{name}"))
        tally = bulk.run(InProcess())
        figures[f"{name}_files"] = tally.files
        figures[f"{name}_errors"] = tally.errors
        figures[f"{name}_wall_s"] = time.perf_counter() - start
        figures[f"{name}_cpu_ms_a_file"] = 1e3 * (time.process_time() - cpu) / tally.files
    figures["growth"] = figures["all_cpu_ms_a_file"] / figures["tenth_cpu_ms_a_file"]
    figures["peak_mb"] = peak_mb()
    return figures


def on_ray(nets: Path, out: Path) -> dict[str, float]:
    start = time.perf_counter()
    with RayExecutor(retries=2) as executor:
        started = time.perf_counter()
        tally = Bulk(FingerprintTask(), [str(nets)], str(out)).run(executor)
        seconds = time.perf_counter() - started
    rate = tally.files / seconds
    return {"ray_start_s": started - start, "ray_wall_s": seconds, "ray_files_a_second": rate}


def again(nets: Path, out: Path) -> dict[str, Any]:
    """The same command once more, and after 10 files changed and 10 came."""
    found = {}
    for name in ("second", "third"):
        start = time.perf_counter()
        done = subprocess.run(command(nets, out), capture_output=True, text=True, check=True)
        found[f"{name}_run_s"] = time.perf_counter() - start
        found[f"{name}_run_done"] = json.loads(done.stdout)["done"]
        for number in range(10):
            made.zoo_net(nets / "new" / f"{number}.safetensors", "residual", 1000 + number)
            changed = nets / "00000" / f"{number + 1}.safetensors"
            changed.unlink()
            made.zoo_net(changed, "residual", 2000 + number)
    return found


def killed(nets: Path, out: Path, undisturbed: Path, kills: int) -> dict[str, int]:
    """Killed soon after some shards were committed: the rows are those of an undisturbed run."""
    rng = random.Random(0)
    done = 0
    for last in [False] * kills + [True]:
        process = subprocess.Popen(
            command(nets, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        enough = len(list(out.glob("data/*.parquet"))) + rng.randint(1, 4)
        while process.poll() is None:
            time.sleep(rng.uniform(0.01, 0.05))
            if not last and len(list(out.glob("data/*.parquet"))) >= enough:
                os.kill(process.pid, signal.SIGKILL)
                done += process.wait() == -signal.SIGKILL
    columns = ["status", "version", "numbers"]
    one, two = (Results(str(folder)).rows(columns).sort_by("path") for folder in (out, undisturbed))
    common = one.filter(pc.is_in(one["path"], two["path"].combine_chunks()))
    return {"kills": done, "rows_equal": int(common.equals(two))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--ray", action="store_true", help="also on all cores of this machine")
    parser.add_argument("--quick", action="store_true", help="2,000 files")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    count = 2000 if options.quick else options.files
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        nets = plant(home, count)
        figures: dict[str, Any] = first_runs(nets, home, count)
        bad = count // 100
        if options.ray:
            figures |= on_ray(nets, home / "out-ray")
        some = home / "tenth"
        figures |= killed(some, home / "out-killed", home / "out-tenth", 3)
        figures |= again(nets, home / "out-all")
        figures["rows"] = len(Results(str(home / "out-all")).rows(["status"]))
    for name, value in figures.items():
        print(f"{name:<24} {value:.4g}")
    checks = {
        "every_bad_file_is_a_row": figures["all_errors"] == bad,
        "second_run_time": figures["second_run_s"] <= SECOND_RUN,
        "second_run_does_nothing": figures["second_run_done"] == 0,
        "third_run_does_what_changed": figures["third_run_done"] == 20,
        "no_growth": figures["growth"] <= (2.0 if options.quick else GROWTH),  # few: noisy
        "memory": figures["peak_mb"] <= MEMORY_MB,
        "killed_and_resumed": figures["kills"] == 3 and bool(figures["rows_equal"]),
        "rows": figures["rows"] == count + 10,
    }
    ok = all(checks.values())
    if options.json:
        targets = {"second_run_s": SECOND_RUN, "growth": GROWTH, "peak_mb": MEMORY_MB}
        print(json.dumps({"figures": figures, "targets": targets, "checks": checks, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
