"""Losing nothing: builds of a small zoo on a local Ray, killed at random moments, then resumed.

Each build is `tnfn zoo build … --ray` in a process of its own. At a random moment a random worker,
or the driver itself, gets `kill -9`; a build whose driver was killed is started again. Meanwhile
the folder is watched: a shard is read the moment it can be seen, and must be, byte for byte, that
of an undisturbed build in this process. At the end the rows of the store must be those of the
undisturbed build, by their content hashes, none missing and none twice, and `tnfn zoo verify` must
find nothing.

    python benchmarks/zoo/faults.py
    python benchmarks/zoo/faults.py --quick --json
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.material.processes import workers
from transformer_nfn.jobs import InProcess
from transformer_nfn.zoo import Build, Recipe, verify
from transformer_nfn.zoo.dataset import Zoo

RECIPE = """
name = "faults"
description = "A zoo that is built in seconds."
task = "digits"
patch = 4
D = 32   # widths with which passes are compiled where they can be
D_A = 64
runs = RUNS
group = 2
lockstep = 2
[training]
batch = 32
epochs = 8
checkpoints = [4, 8]
warmup = 1
schedule = "step"
train_examples = 640
validation_examples = 100
test_examples = 100
[[families]]
optimizer = ["sgd", "adam"]
lr = [1e-3, 1e-2, 1e30]   # the last diverges
l2 = [1e-6, 1e-2]
dropout = [0.0, 0.1]
init_std = [0.2, 0.4]
train_fraction = [1.0]
"""


def start(recipe: Path, out: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            *(sys.executable, "-c", "from transformer_nfn.cli import main; main()"),
            *("zoo", "build", str(recipe), "--out", str(out), "--ray"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def finish(build: "subprocess.Popen[bytes]") -> None:
    _, errors = build.communicate(timeout=600)
    if build.returncode != 0:
        raise SystemExit(f"a build failed with {build.returncode}:\n{errors.decode()}")


class Watch(threading.Thread):
    """Reads every shard as soon as it can be seen and compares it with the undisturbed one."""

    def __init__(self, folder: Path, expected: dict[str, bytes]) -> None:
        super().__init__(daemon=True)
        self.folder, self.expected = folder, expected
        self.seen: set[str] = set()
        self.wrong: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            self.look()
            time.sleep(0.002)
        self.look()

    def look(self) -> None:
        names = {path.name for path in self.folder.glob("*.parquet")}
        for name in names - self.seen:
            if (self.folder / name).read_bytes() != self.expected.get(name):
                self.wrong.append(name)
            self.seen.add(name)


def rows_of(out: Path) -> list[tuple[str, str, str]]:
    table = Zoo(out).table(columns=["run_id", "checkpoint", "digest"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def disturbed(
    recipe: Path,
    out: Path,
    expected: dict[str, bytes],
    chance: random.Random,
    victims: tuple[str, ...],
) -> dict[str, object]:
    """One build with a kill for each victim; how many happened, and what the watch saw."""
    watch = Watch(out / "data", expected)
    watch.start()
    build = start(recipe, out)
    # The moments are drawn in terms of work: between Ray's start and the last shard.
    moments = sorted(chance.randrange(len(expected)) for _ in victims)
    kills = []
    for victim, wanted in zip(victims, moments, strict=True):
        while build.poll() is None and (
            len(watch.seen) < wanted or (victim == "worker" and not workers(build.pid))
        ):
            time.sleep(0.01)
        time.sleep(chance.random() * 0.5)
        pids = workers(build.pid) if victim == "worker" else [build.pid]
        if not pids or build.poll() is not None:
            continue  # too late
        kills.append((victim, len(watch.seen)))
        os.kill(chance.choice(pids), signal.SIGKILL)
        if victim == "driver":
            build.communicate()
            build = start(recipe, out)
    finish(build)
    watch.stop.set()
    watch.join()
    return {"killed_after_shards": kills, "wrong": watch.wrong}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="1 build with 2 kills instead of 20 with 1"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    both = ("worker", "driver")
    plan = [both] if options.quick else [(both[number % 2],) for number in range(20)]
    failures = 0
    killed = []
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        recipe = home / "faults.toml"
        recipe.write_text(RECIPE.replace("RUNS", "12" if options.quick else "48"))
        with InProcess() as executor:
            Build(Recipe.load(recipe), home / "calm").run(executor)
        expected = {path.name: path.read_bytes() for path in (home / "calm/data").glob("*.parquet")}
        calm = rows_of(home / "calm")
        print(f"undisturbed: {len(calm)} rows in {len(expected)} shards")
        for number, victims in enumerate(plan):
            out = home / f"disturbed{number}"
            seen = disturbed(recipe, out, expected, chance, victims)
            rows = rows_of(out)
            problems = [one for one in verify(Zoo(out)) if one.name in expected and one.problems]
            seen["equal"] = rows == calm
            seen["twice"] = len(rows) - len({row[:2] for row in rows})
            seen["problems"] = len(problems)
            good = seen["equal"] and not (seen["twice"] or problems or seen["wrong"])
            failures += not good
            killed.append(seen["killed_after_shards"])
            print(f"{number + 1:2d}  {'equal' if good else 'WRONG'}  {seen}", flush=True)
    kills, wanted = sum(map(len, killed)), sum(map(len, plan))
    print(f"{len(plan)} builds, {kills} kills, {failures} wrong")
    if options.json:
        seen = {"builds": len(plan), "kills": kills, "kills_target": wanted, "wrong": failures}
        print(json.dumps({**seen, "ok": failures == 0 and kills == wanted}))


if __name__ == "__main__":
    main()
