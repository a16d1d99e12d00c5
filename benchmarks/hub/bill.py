"""What bulk work costs: constants measured here, a model made of them, and the bill of some sizes.

    python benchmarks/hub/bill.py --json
    python benchmarks/hub/bill.py --files 50000 --bytes 2e14 --bandwidth 3e9 --json
    python benchmarks/hub/bill.py --quick --json

Processor times are those of one core with warm caches. Work on a core that shares its units makes
them longer, so what is compared is timed in turns.
The model, for `files` of `bytes` in all, of which `read` are read:

    core time  = files · a file + read / bytes a second, and start-up once for each worker
    wall time  = the larger of core time / cores and read / bandwidth
    comparison = pairs within one shape · a pair / cores

Bandwidth, cores and the largest number of files of one shape are assumptions that can be set. No
target but one: the model tells the processor time of a run it did not see within a factor 1.5.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.hub.planted import plant, templates
from benchmarks.hub.usage import measured
from benchmarks.kin.index import made as made_prints
from tests.checkpoints import made
from transformer_nfn.hub import Bulk, FingerprintTask, Results, list_items
from transformer_nfn.hub.planning import open_items
from transformer_nfn.hub.work import to_table
from transformer_nfn.jobs import InProcess
from transformer_nfn.kinship import fingerprint

WITHIN = 1.5


@dataclass(frozen=True)
class Constants:
    """What was measured; times are processor times of one core but for `start_wall_s`."""

    list_us_a_file: float
    plan_us_a_file: float
    file_ms: float
    float32_bytes_a_second: float
    bfloat16_bytes_a_second: float
    sha256_bytes_a_second: float
    bare_bytes_a_second: float
    commit_ms_a_shard: float
    row_bytes: float
    start_wall_s: float
    start_cpu_s: float
    worker_bytes: float
    pair_ns: float


@dataclass(frozen=True)
class Case:
    """A size, and what it is done with."""

    name: str
    files: float
    bytes: float
    cores: float
    bandwidth: float
    one_shape: float
    share_read: float = 1.0


CASES = (
    Case("a folder: 1,000 of 100 MB", 1e3, 1e11, 2, 1e9, 1e2),
    Case("a sweep: 100,000 of 65 kB", 1e5, 6.5e9, 2, 1e9, 1e5),
    Case("a company: 100,000 of 1 GB", 1e5, 1e14, 64, 5e9, 1e4),
    Case("a hub: 2,000,000 of 1 GB", 2e6, 2e15, 512, 5e10, 1e5),
    Case("the hub, two blocks only", 2e6, 2e15, 512, 5e10, 1e5, 0.05),
)


def cpu(function: Callable[[], Any], turns: int) -> float:
    """Processor seconds of the fastest of some turns."""
    return min(timed(function) for _ in range(turns))


def timed(function: Callable[[], Any]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def small_files(home: Path, count: int) -> tuple[dict[str, float], float]:
    """Constants of small files, and the time of half as many others, in turns with these."""
    kinds = templates(home / "templates")
    hub = plant(home / "nets", count, kinds)
    others = plant(home / "others", count // 2, kinds)
    listing = cpu(lambda: list_items([str(hub.home)]), 3)
    number = iter(range(1000))

    def run(source: Path) -> Bulk:
        bulk = Bulk(FingerprintTask(), [str(source)], str(home / f"results-{next(number)}"))
        bulk.run(InProcess())
        return bulk

    run(hub.home)
    turns = [[timed(lambda at=at: run(at)) for at in (hub.home, others.home)] for _ in range(5)]
    seconds, unseen = map(min, zip(*turns, strict=True))
    table = run(hub.home).results.rows()
    row = [{"path": "a"} for _ in range(512)]
    empty = to_table(FingerprintTask(), row)
    results = Results(str(home / "shards"), {"name": "none"})
    commit = cpu(lambda: results.commit(f"{next(number):06d}-a.parquet", empty), 20)
    constants = {
        "list_us_a_file": 1e6 * listing / count,
        "file_ms": 1e3 * seconds / count,
        "commit_ms_a_shard": 1e3 * commit,
        "row_bytes": table.nbytes / len(table),
    }
    return constants, unseen


def planning(count: int) -> dict[str, float]:
    names = pa.array([f"/hub/models/{number:08d}.safetensors" for number in range(count)])
    versions = pa.array([f"{number}:1" for number in range(count)])
    listing = pa.table({"path": names, "size": pa.array(np.arange(count)), "version": versions})
    ok = pa.array(["ok"] * count)
    columns = {"path": names, "version": versions, "status": ok, "reader": ok}
    known = pa.table(columns)
    return {"plan_us_a_file": 1e6 * cpu(lambda: open_items(listing, known), 3) / count}


def large_files(home: Path) -> dict[str, float]:
    """A file of 43 MB in float32 and in bfloat16, again and again."""
    sizes = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6}
    net = made.model("bert", **sizes, num_attention_heads=6)
    found = {}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        folder = made.save(net, home / name, dtype)
        size = (folder / "model.safetensors").stat().st_size
        fingerprint(folder)
        found[f"{name}_bytes_a_second"] = size / cpu(lambda f=folder: fingerprint(f), 7)
    file = home / "float32" / "model.safetensors"
    size = file.stat().st_size
    hashing = cpu(lambda: hashlib.sha256(file.read_bytes()).digest(), 5)
    save_file(load_file(file), home / "again.safetensors")
    reading = cpu(lambda: [t.clone() for t in load_file(home / "again.safetensors").values()], 5)
    return found | {
        "sha256_bytes_a_second": size / hashing,
        "bare_bytes_a_second": size / reading,
    }


def start(home: Path) -> dict[str, float]:
    """One small file on Ray: nothing but start-up."""
    net = made.zoo_net(home / "one.safetensors", "residual")
    command = [sys.executable, "-c", "from transformer_nfn.cli import main; main()", "fingerprint"]
    used = measured([*command, str(net), "--out", str(home / "one"), "--ray", "--json"])
    return {"start_wall_s": used.wall, "start_cpu_s": used.cpu, "worker_bytes": used.largest}


def comparing(count: int) -> dict[str, float]:
    index, _ = made_prints(count)
    return {"pair_ns": 1e9 * cpu(index.forest, 2) / (count * (count - 1) / 2)}


def bill(constants: Constants, case: Case) -> dict[str, float]:
    """The model."""
    again = constants.list_us_a_file + constants.plan_us_a_file
    a_file = constants.file_ms / 1e3 + again / 1e6
    read = case.bytes * case.share_read
    core_s = case.files * a_file + read / constants.bfloat16_bytes_a_second  # the slower one
    core_s += constants.start_cpu_s
    network_s = read / case.bandwidth
    pairs = case.one_shape * (case.one_shape - 1) / 2
    return {
        "core_hours": core_s / 3600,
        "bytes_read": read,
        "wall_hours": (max(core_s / case.cores, network_s) + constants.start_wall_s) / 3600,
        "waits_for_the_network": float(network_s > core_s / case.cores),
        "memory_bytes": case.cores * constants.worker_bytes,
        "result_bytes": case.files * constants.row_bytes,
        "compare_core_hours": pairs * constants.pair_ns / 1e9 / 3600,
        "second_run_s": 1.3
        * case.files
        * (constants.list_us_a_file + constants.plan_us_a_file)
        / 1e6
        + 3,
    }


def check(spent: float, constants: Constants, count: int) -> dict[str, float]:
    """What the model says of a run that it did not see, in this process."""
    # Start-up of Ray is no part of it, and the bytes of small files are in the time of a file.
    told = 3600 * bill(constants, Case("check", count, 0, 1, 1e12, 1))["core_hours"]
    told -= constants.start_cpu_s
    return {"check_cpu_s": spent, "check_told_s": told, "check_ratio": spent / told}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=float, help="a size of your own")
    parser.add_argument("--bytes", type=float, default=1e12, help="of all its files")
    parser.add_argument("--cores", type=float, default=64)
    parser.add_argument("--bandwidth", type=float, default=1e9, help="bytes a second, of all cores")
    parser.add_argument("--one-shape", type=float, default=1e4, help="files of the largest shape")
    parser.add_argument("--share-read", type=float, default=1.0, help="of the bytes")
    parser.add_argument("--quick", action="store_true", help="fewer files, shorter turns")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    count = 30 if options.quick else 1700
    home = Path(tempfile.mkdtemp())
    try:
        small, unseen = small_files(home / "small", count)
        constants = Constants(
            **small,
            **planning(20_000 if options.quick else 1_000_000),
            **large_files(home / "large"),
            **start(home / "start"),
            **comparing(4000 if options.quick else 20_000),
        )
        checked = check(unseen, constants, count // 2)
    finally:
        shutil.rmtree(home)
    cases = list(CASES)
    if options.files:
        own = (options.files, options.bytes, options.cores, options.bandwidth, options.one_shape)
        cases.append(Case("yours", *own, options.share_read))
    bills = {case.name: asdict(case) | bill(constants, case) for case in cases}
    for name, value in asdict(constants).items():
        print(f"{name:<26} {value:.4g}")
    for name, one in bills.items():
        print(f"\n{name}")
        for word, value in one.items():
            if word != "name":
                print(f"  {word:<24} {value:.3g}")
    ok = 1 / WITHIN <= checked["check_ratio"] <= WITHIN
    if options.json:
        figures = {"constants": asdict(constants), "bills": bills, **checked}
        targets = {"check_ratio": WITHIN}
        print(
            json.dumps({"figures": figures, "targets": targets, "checks": {"told": ok}, "ok": ok})
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
