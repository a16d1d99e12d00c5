"""Bulk work and a zoo on an S3 server, with a share of the requests disturbed.

    python benchmarks/hub/stores.py --json              # 300 files, a server of our own on loopback
    python benchmarks/hub/stores.py --quick --json
    python benchmarks/hub/stores.py --endpoint http://127.0.0.1:9000 --bucket tests --json

Between client and server stands a proxy (tests/stores/faulty.py) that counts requests and, in the
disturbed parts, injects faults of eight kinds into `--rate` of them. Results must be those of the
same work on local files. With `--endpoint` the server is another one, of S3's kind, plain http;
credentials come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.checkpoints import made
from tests.stores.faulty import KINDS, Proxy, proxy
from tests.stores.server import ACCESS, SECRET, running
from tests.zoo.conftest import write_tiny
from transformer_nfn.hub import Bulk, FingerprintTask, Results
from transformer_nfn.jobs import InProcess
from transformer_nfn.stores import Store, store
from transformer_nfn.zoo import Build, Recipe, verify
from transformer_nfn.zoo.dataset import Zoo

REQUESTS_A_FILE = 8.0
MIB = 2**20
CONTENT = ("status", "shape", "parts", "numbers")


class Bench:
    """One place in a bucket, and what happened there."""

    def __init__(self, between: Proxy, url: str, home: Path, options: argparse.Namespace) -> None:
        self.between, self.url, self.home = between, url, home
        self.rate = options.rate
        self.store, self.path = Store.at(url)
        self.figures: dict[str, Any] = {}
        self.checks: dict[str, bool] = {}
        self.faults = dict.fromkeys(KINDS, 0)
        self.disturbed_requests = 0

    def observed(self, work: Callable[[], Any], *, disturb: bool) -> tuple[Any, float, int, int]:
        """What some work gives, and its seconds, requests and bytes."""
        self.between.clear()
        self.between.rate = self.rate if disturb else 0.0
        start = time.perf_counter()
        result = work()
        self.between.rate = 0.0
        seconds, requests = time.perf_counter() - start, sum(self.between.requests.values())
        if disturb:
            self.disturbed_requests += requests
            for kind, count in self.between.faults.items():
                self.faults[kind] += count
        return result, seconds, requests, self.between.sent


def wait(seconds: float) -> None:
    """How long clients wait for an answer from now on."""
    fsspec.config.conf["s3"] = {"config_kwargs": {"read_timeout": seconds}}


def rows(out: str) -> dict[str, list[Any]]:
    found = Results(out).rows().to_pylist()
    return {row["path"].rpartition("/")[2]: [row[key] for key in CONTENT] for row in found}


def fingerprints(bench: Bench, count: int) -> None:
    """All files, again, and all of them disturbed."""
    nets = bench.home / "nets"
    for number in range(count):
        made.zoo_net(nets / f"{number // 100}" / f"{number}.safetensors", "residual", number % 64)
    (nets / "broken.safetensors").write_bytes(b"no")
    files = {
        f"{bench.path}/nets/{file.relative_to(nets)}": file.read_bytes()
        for file in nets.rglob("*.safetensors")
    }
    bench.store.fs.pipe(files)

    def run(source: str, out: str) -> int:
        return Bulk(FingerprintTask(), [source], out).run(InProcess()).files

    far, local = f"{bench.url}/nets", str(bench.home / "local")
    run(str(nets / "0"), str(bench.home / "warm"))
    start = time.perf_counter()
    run(str(nets), local)
    near = time.perf_counter() - start
    calm, wild = f"{bench.url}/calm", f"{bench.url}/wild"
    done, seconds, requests, sent = bench.observed(lambda: run(far, calm), disturb=False)
    bench.figures |= {
        "files": done,
        "local_ms_a_file": 1e3 * near / done,
        "s3_ms_a_file": 1e3 * seconds / done,
        "s3_to_local": seconds / near,
        "requests_a_file": requests / done,
        "requests_by_method": dict(bench.between.requests),
        "bytes_a_file": sent / done,
        "bytes_of_a_file": sum(map(len, files.values())) / done,
    }
    again, seconds, repeated, _ = bench.observed(lambda: run(far, calm), disturb=False)
    bench.figures |= {"second_run_requests": repeated, "second_run_s": seconds}
    _, seconds, disturbed, _ = bench.observed(lambda: run(far, wild), disturb=True)
    bench.figures["disturbed_s3_to_local"] = seconds / near
    bench.figures["disturbed_extra_requests"] = disturbed - requests
    bench.checks |= {
        "fingerprints_equal": rows(calm) == rows(local),
        "disturbed_fingerprints_equal": rows(wild) == rows(local),
        "second_run_does_nothing": again == 0,
        "requests_a_file": bench.figures["requests_a_file"] <= REQUESTS_A_FILE,
    }


def zoo(bench: Bench, runs: int) -> None:
    """A zoo that is built and verified while it is disturbed: byte for byte the local one."""
    recipe = Recipe.load(write_tiny(bench.home))
    Build(recipe, bench.home / "zoo", runs=runs).run(InProcess())
    near = Zoo(bench.home / "zoo")

    def build() -> bool:
        failures = Build(recipe, f"{bench.url}/zoo", runs=runs).run(InProcess())
        far = Zoo(f"{bench.url}/zoo")
        same = far.names() == near.names() and all(
            far.shards.read_bytes(name) == near.shards.read_bytes(name) for name in near.names()
        )
        return same and not failures and not any(one.problems for one in verify(far))

    equal, _, _, _ = bench.observed(build, disturb=True)
    bench.figures["zoo_shards"] = len(near.names())
    bench.checks["disturbed_zoo_equal"] = equal


def race(bench: Bench, names: int, size: int, *, disturb: bool) -> list[int]:
    """Of each name, how many of four writers were told that they created it.

    A lost answer may leave none, since a writer cannot tell its own file from another's.
    """
    contents = [bytes([65 + writer]) * size for writer in range(4)]
    winners = []
    for number in range(names):
        path = f"{bench.path}/race-{size}-{disturb}/{number}"
        with ThreadPoolExecutor(4) as threads:
            work = [threads.submit(bench.store.create, path, content) for content in contents]
            won = [one.result() for one in work]
        found = bench.store.open(path, size).read()
        right = contents.index(found) if found in contents else None
        wrong = right is None or (sum(won) == 1 and not won[right])
        winners.append(-1 if wrong else sum(won))
    return winners


def creating(bench: Bench, names: int) -> None:
    for name, disturb in (("race", False), ("disturbed_race", True)):
        winners, *_ = bench.observed(
            lambda disturb=disturb: race(bench, names, 1000, disturb=disturb), disturb=disturb
        )
        bench.figures[f"{name}_winners"] = {str(n): winners.count(n) for n in sorted({*winners})}
        allowed = {0, 1} if disturb else {1}
        bench.checks[f"{name}_has_one_winner"] = set(winners) <= allowed


def parts(bench: Bench, large: int) -> None:
    """Uploads in parts: one that is disturbed, and several of one name at a time."""
    wait(15.0)  # a server may take seconds for a large part
    bench.store, _ = Store.at(bench.url)
    content = os.urandom(MIB) * (large // MIB)
    path = f"{bench.path}/large"

    def upload() -> bool:
        bench.store.create(path, content)
        return bench.store.open(path, 8 * MIB).read() == content

    equal, seconds, _, _ = bench.observed(upload, disturb=True)
    bench.checks["disturbed_upload_in_parts_equal"] = equal
    bench.checks["upload_in_parts_is_created_once"] = not bench.store.create(path, content)
    bench.figures |= {"upload_in_parts_mib": large / MIB, "upload_in_parts_s": seconds}
    winners = race(bench, 2, 2 * store.PART, disturb=False)
    # No check: that only one is told so is the server's promise, which SeaweedFS 4.48 breaks.
    bench.figures["race_in_parts_winners"] = winners
    bench.checks["race_in_parts_leaves_one_whole_file"] = -1 not in winners


def listing(bench: Bench, count: int) -> None:
    home = f"{bench.path}/many"
    bench.store.fs.pipe({f"{home}/{number:06d}": b"x" for number in range(count)})
    bench.store.forget()
    found, _, requests, _ = bench.observed(lambda: len(bench.store.find(home)), disturb=True)
    bench.figures |= {"listed": found, "listing_requests": requests}
    bench.checks["all_listed"] = found == count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--endpoint", help="of another server; ours is SeaweedFS")
    parser.add_argument("--bucket", default="benchmark", help="made if it is not there")
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.1, help="share of requests with a fault")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--quick", action="store_true", help="10 files, and less of all")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home, endpoint = Path(folder), options.endpoint
        if endpoint is None:
            endpoint = stack.enter_context(running(home / "server"))
            os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
        between = stack.enter_context(proxy(endpoint, seed=options.seed))
        os.environ |= {"AWS_ENDPOINT_URL": between.url, "AWS_DEFAULT_REGION": "us-east-1"}
        wait(0.5 if options.quick else 2.0)
        bench = Bench(between, f"s3://{options.bucket}/{time.time_ns()}", home, options)
        if not bench.store.exists(options.bucket):
            bench.store.fs.mkdir(options.bucket)
        bench.store.replace(f"{bench.path}/first", b"1")  # some servers take a while for the first
        store.PART = (5 if options.quick else 16) * MIB
        fingerprints(bench, 10 if options.quick else options.files)
        zoo(bench, 2 if options.quick else 30)
        creating(bench, 3 if options.quick else 100)
        parts(bench, 4 * store.PART)
        listing(bench, 105 if options.quick else 10_005)
        if options.endpoint:
            bench.store.fs.rm(bench.path, recursive=True)
    more = {"faults": bench.faults, "disturbed_requests": bench.disturbed_requests}
    figures = bench.figures | more
    bench.checks["faults_were_injected"] = sum(bench.faults.values()) > 0
    bench.checks["every_kind_of_fault"] = options.quick or all(bench.faults.values())
    for name, value in figures.items():
        print(f"{name:<24} {value:.4g}" if isinstance(value, float) else f"{name:<24} {value}")
    ok = all(bench.checks.values())
    if options.json:
        targets = {"requests_a_file": REQUESTS_A_FILE}
        print(
            json.dumps({"figures": figures, "targets": targets, "checks": bench.checks, "ok": ok})
        )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
