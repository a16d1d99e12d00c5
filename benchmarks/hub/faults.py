"""Losing nothing: bulk fingerprinting on a local Ray, disturbed in every way we could think of.

A run is `tnfn fingerprint FOLDER --out OUT --ray` as a command of its own, over some hundred small
checkpoints of seven families, some of them bad. While it is under way, workers, the driver or the
raylet are killed or told to stop; files vanish, come back, are replaced, written over, or still
grow; the disk of the results, a small file system made for it, fills up; a second driver works on
the same; or several of these. Commands that were ended are started again. Then the same command
without Ray follows until it finds nothing to do, and the rows must be those of an undisturbed run
over the same files: none missing, none twice, numbers bit for bit. Every shard is read as soon as
it can be seen and once more at the end. No process may be left behind.

    python benchmarks/hub/faults.py --json          # 50 runs
    python benchmarks/hub/faults.py --quick --json
    python benchmarks/hub/faults.py --only full,two --seed 3

File systems are mounted in a namespace of its own (`unshare`), so nothing stays mounted.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.hub.disturbed.files import plant
from benchmarks.hub.disturbed.run import Run, WrongError

KINDS = ("worker", "driver", "stop", "raylet", "vanish", "change", "grow", "full", "two")
QUICK = (("worker", "vanish", "change", "full", "grow"),)
ROUNDS = 5


def plan(seed: int) -> list[tuple[str, ...]]:
    """Each kind alone, and three at random at once; five times."""
    rng = random.Random(seed)
    rounds = [[*((kind,) for kind in KINDS), tuple(rng.sample(KINDS, 3))] for _ in range(ROUNDS)]
    return [kinds for one in rounds for kinds in one]


def in_own_namespace() -> bool:
    """Whether file systems can be mounted; this process starts itself anew where they can."""
    if "TNFN_FAULTS_NAMESPACE" in os.environ:
        return os.environ["TNFN_FAULTS_NAMESPACE"] == "own"
    words = ["unshare", "--mount", *(["--user", "--map-root-user"] if os.geteuid() else [])]
    works = shutil.which("unshare") and not subprocess.run([*words, "true"], check=False).returncode
    os.environ["TNFN_FAULTS_NAMESPACE"] = "own" if works else "none"
    if works:
        os.execvp(words[0], [*words, sys.executable, *sys.argv])
    return False


def is_good(found: dict[str, object], kinds: tuple[str, ...]) -> bool:
    """Two drivers may do a file twice, since neither knows of the other; all else is 0."""
    wrong = ["missing", "different", "path_twice", "contradict", "torn", "temporaries"]
    wrong += [] if "two" in kinds else ["twice"]
    return not any(found[name] for name in wrong) and not found["left_behind"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="1 run with fewer files")
    parser.add_argument("--only", help="one run with these kinds, with commas between")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left running
    can_mount = in_own_namespace()
    runs = [tuple(options.only.split(","))] if options.only else plan(options.seed)
    runs = list(QUICK) if options.quick else runs
    left_out = [] if can_mount else [kinds for kinds in runs if "full" in kinds]
    start, judged, hits, statuses = time.monotonic(), [], Counter(), Counter()
    # Ray's sockets have long names under it, and sockets allow 107 characters.
    with tempfile.TemporaryDirectory(prefix="hf-") as folder:
        home = Path(folder)
        os.environ["RAY_TMPDIR"] = str(home)
        pool = plant(home, 160 if options.quick else 480)
        for number, kinds in enumerate(kinds for kinds in runs if kinds not in left_out):
            began = time.monotonic()
            run = Run(home / str(number), pool, home / "spare", kinds, f"{options.seed}-{number}")
            try:
                found = run.judge()
                good = is_good(found, kinds)
                statuses.update(found.pop("statuses"))
            except WrongError as error:
                found, good = {"wrong": str(error)}, False
            hits.update(hit.rpartition(" after ")[0] for hit in run.hits)
            judged.append({"kinds": kinds, "good": good, **found})
            took = time.monotonic() - began
            mark = "equal" if good else "WRONG"
            print(f"{number + 1:2d} {mark} {took:5.1f} s  {'+'.join(kinds)}: {found}", flush=True)
            shutil.rmtree(home / str(number), ignore_errors=True)
            for session in home.glob("ray/session_*"):
                shutil.rmtree(session, ignore_errors=True)
    figures = {
        "runs": len(judged),
        "wrong": sum(not one["good"] for one in judged),
        "happened": dict(hits),
        "rows": dict(statuses),
        "twice_with_two_drivers": sum(one.get("twice", 0) for one in judged),
        "left_out": len(left_out),
        "seconds": round(time.monotonic() - start, 1),
    }
    wanted = {kind for kinds in runs for kind in kinds}
    checks = {
        "identical_nothing_lost_nothing_twice": figures["wrong"] == 0,
        "runs": len(judged) == len(runs),
        "all_kinds_happened": all(_happened(kind, hits) for kind in wanted),
    }
    print(figures)
    ok = all(checks.values())
    if options.json:
        targets = {"runs": len(runs), "wrong": 0}
        print(json.dumps({"figures": figures, "targets": targets, "checks": checks, "ok": ok}))
    return 0 if ok else 1


def _happened(kind: str, hits: "Counter[str]") -> bool:
    names = {"two": ["second driver"], "stop": ["SIGINT", "SIGTERM"]}.get(kind, [kind])
    return any(hits[name] for name in names)


if __name__ == "__main__":
    sys.exit(main())
