r"""Who comes from whom: whether p holds for strangers, what is found, and what others find.

    python benchmarks/kin/kinship.py --zoo ../zoos/strangers --out ../zoos/lineage --json
    python benchmarks/kin/kinship.py --zoo ../zoos/strangers --no-lineage --plot p.png --json
    python benchmarks/kin/kinship.py --real ../lineage --labels ../PAIRS.tsv --no-lineage --json
    python benchmarks/kin/kinship.py --costs ../real/minilm ../real/tuned --no-lineage --json
    python benchmarks/kin/kinship.py --quick --json

- strangers: networks of a zoo, each from a start of its own on the same data (`tnfn zoo build
  --seeds run`): of random pairs, how often p is at most 0.1, 0.01 and 0.001, with an interval by
  resampling the networks, and the same of pairs that share no network.
- real: trained networks out of packages, with what is known of them (`descent/real.py`).
- lineage: networks of `transformers` trained on text and pictures, and what people make of them
  (`descent/changes.py`), as they are, with neurons and heads in another order, and moved by all
  parts of their group. Ten methods on each; thresholds come from independent networks of one
  architecture.
- costs: seconds and memory of each method on one pair, in a process of its own.

Everything is made once and kept in `--out`; run again to go on.
"""

import argparse
import json
import math
import os
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kin.descent import changes, real
from benchmarks.kin.descent.costs import costs
from benchmarks.kin.descent.methods import METHODS, File
from benchmarks.kin.descent.picture import plot_ps
from benchmarks.kin.descent.training import ARCHITECTURES, Task
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import apply_element, random_net_element, symmetry_parts
from transformer_nfn.kinship import LEVEL, are_kin, kin
from transformer_nfn.zoo import export
from transformer_nfn.zoo.dataset import Zoo

ALPHAS = (0.1, 0.01, 0.001)
#: The architecture of the independent networks that thresholds come from.
MANY = "llama"
#: How a network is hidden, and by which parts of its group; None is all.
DISGUISES: dict[str, tuple[str, ...] | None] = {
    "plain": (),
    "neurons and heads moved": ("neurons", "heads"),
    "all moved": None,
}
#: Whether both looks at sketches call a pair kin, beside what the methods say.
FOUND = "found by sketches"
_QUICK_CHANGES = ("fine-tune light", "neurons pruned", "layer pruned", "int8", "distilled")


def slug(name: str) -> str:
    return name.replace(" ", "_").replace("%", "percent")


def save(net: Any, folder: Path) -> None:
    """All or nothing: a folder that is there is whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as home:
        net.save_pretrained(Path(home) / "net")
        (Path(home) / "net").rename(folder)


def hide(folder: Path, out: Path, parts: tuple[str, ...] | None, seed: int) -> None:
    """The same function with other weights."""
    with Checkpoint(folder) as checkpoint, tempfile.TemporaryDirectory(dir=out.parent) as home:
        chosen = None if parts is None else [p for p in symmetry_parts(checkpoint) if p in parts]
        condition = 2.0 if torch.finfo(checkpoint.dtype).eps > 1e-4 else 10.0
        element = random_net_element(
            checkpoint, torch.Generator().manual_seed(seed), parts=chosen, condition=condition
        )
        apply_element(checkpoint, element, Path(home) / "net").rename(out)


def build(kind: str, seed: int, wanted: Sequence[str], data: Path, home: Path, steps: int) -> str:
    """A root, and what is made of it."""
    _calm()
    folder = home / f"{kind}-{seed}"
    # Some roots learn from the other half of the data, the others from all of it in one order.
    task = Task(part=seed % 2) if seed % 5 == 4 else Task()
    if not folder.exists():
        save(changes.root(kind, seed, data, steps, task), folder)
    for name in wanted:
        out = home / f"{kind}-{seed}-{slug(name)}"
        if not out.exists():
            net = getattr(transformers, ARCHITECTURES[kind][0]).from_pretrained(folder)
            save(changes.changed(kind, seed, net, data, steps)[name](), out)
        for disguise, parts in DISGUISES.items():
            hidden = home / f"{out.name}-{slug(disguise)}"
            if parts != () and not hidden.exists():
                hide(out, hidden, parts, seed)
    return folder.name


def asked(pairs: Sequence[tuple[Path, Path]], names: Sequence[str]) -> list[dict[str, float]]:
    """What each method says of some pairs."""
    _calm()
    files: dict[Path, File] = {}

    def file(path: Path) -> File:
        return files.setdefault(path, File(path))

    return [
        {name: METHODS[name](file(one), file(two)) for name in names}
        | {FOUND: float(are_kin(file(one).fingerprint.sketch, file(two).fingerprint.sketch))}
        for one, two in pairs
    ]


def log_ps(pairs: Sequence[tuple[Path, Path]]) -> list[float]:
    """Our p of some pairs, as a logarithm."""
    _calm()
    found = []
    for one, two in pairs:
        with Checkpoint(one) as a, Checkpoint(two) as b:
            found.append(kin(a, b).log_p)
    return found


def _calm() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def strangers(files: Sequence[Path], count: int, pool: Executor) -> dict[str, Any]:
    """How often p is small for networks that have nothing in common but the data."""
    every = list(combinations(range(len(files)), 2))
    random.Random(0).shuffle(every)
    chosen = every[:count]
    logs = np.array(spread(pool, log_ps, [(files[i], files[j]) for i, j in chosen]))
    first, second = (np.array(side) for side in zip(*chosen, strict=True))
    order = random.Random(1).sample(range(len(files)), len(files) // 2 * 2)
    apart = [(files[i], files[j]) for i, j in zip(order[::2], order[1::2], strict=True)]
    disjoint = np.array(spread(pool, log_ps, apart))
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {"networks": len(files), "pairs": len(chosen), "disjoint": len(apart)}
    for alpha in ALPHAS:
        small = logs <= math.log(alpha)
        shares = []
        for _ in range(1000):  # a pair counts as often as both of its networks were drawn
            weight = np.bincount(rng.integers(len(files), size=len(files)), minlength=len(files))
            each = weight[first] * weight[second]
            shares.append((small * each).sum() / max(each.sum(), 1))
        found[f"p <= {alpha}"] = {
            "share": float(small.mean()),
            "interval": [float(x) for x in np.quantile(shares, (0.025, 0.975))],
            "disjoint": float((disjoint <= math.log(alpha)).mean()),
        }
    found["smallest_log10_p"] = float(logs.min() / math.log(10))
    # Of each p that was seen the share that is at most so large, close together where p is small.
    ranks = np.unique(np.geomspace(1, len(logs), 200).astype(int))
    ordered = np.sort(np.exp(logs))
    found["ps"] = [[float(ordered[rank - 1]), float(rank / len(logs))] for rank in ranks]
    return found


def spread(pool: Executor, ask: Any, pairs: Sequence[Any], *more: Any) -> list[Any]:
    """Some pairs at a time on each core, with a line after each tenth."""
    step = max(1, min(50, len(pairs) // 8))
    pieces = [pairs[begin : begin + step] for begin in range(0, len(pairs), step)]
    found: list[Any] = []
    for piece in pool.map(ask, pieces, *([each] * len(pieces) for each in more)):
        found += piece
        if len(found) * 10 // len(pairs) > (len(found) - len(piece)) * 10 // len(pairs):
            print(f"{ask.__name__}: {len(found)} of {len(pairs)}", file=sys.stderr, flush=True)
    return found


def auc(positive: Iterable[float], negative: Iterable[float]) -> float:
    """How often kin have the larger number; a tie is half."""
    high, low = np.array(list(positive)), np.sort(np.array(list(negative)))
    below = np.searchsorted(low, high, "left") + np.searchsorted(low, high, "right")
    return float(below.mean() / 2 / len(low))


def found_at(positive: Sequence[float], negative: Sequence[float], rate: float) -> float:
    """The share of kin above all but this share of the strangers."""
    limit = np.sort(np.array(negative))[::-1][int(rate * len(negative))]
    return float((np.array(positive) > limit).mean())


def lineage(
    home: Path, roots: dict[str, list[int]], names: Sequence[str], count: int, pool: Any
) -> dict[str, Any]:
    """Every method on every change and disguise, and on strangers."""
    methods = list(METHODS)
    pairs, told = [], []
    for kind, seeds in roots.items():
        for seed in seeds:
            for name in names:
                for disguise in DISGUISES:
                    end = "" if disguise == "plain" else f"-{slug(disguise)}"
                    other = home / f"{kind}-{seed}-{slug(name)}{end}"
                    pairs.append((other, home / f"{kind}-{seed}"))
                    told.append((kind, name, disguise))
    seen = spread(pool, asked, pairs, methods)
    independent = sorted(home.glob(f"{MANY}-*[0-9]"), key=lambda f: int(f.name.split("-")[1]))
    independent = [folder for folder in independent if folder.name.count("-") == 1]
    every = list(combinations(independent, 2))
    random.Random(0).shuffle(every)
    far = spread(pool, asked, every[:count], methods)
    report: dict[str, Any] = {
        "roots": sum(map(len, roots.values())),
        "independent": len(independent),
        "stranger_pairs": len(far),
        "methods": {},
    }
    kin_of = [name for name in names if name not in changes.STRANGERS]
    for method in methods:
        low = [one[method] for one in far]
        table: dict[str, Any] = {}
        for disguise in DISGUISES:
            high = {
                name: [
                    one[method]
                    for one, (kind, what, how) in zip(seen, told, strict=True)
                    if (kind, what, how) == (MANY, name, disguise)
                ]
                for name in names
            }
            every_kin = [value for name in kin_of for value in high[name]]
            table[disguise] = {
                "auc": auc(every_kin, low),
                "tpr_1": found_at(every_kin, low, 0.01),
                "tpr_01": found_at(every_kin, low, 0.001),
                "auc_by_change": {name: auc(values, low) for name, values in high.items()},
            }
        report["methods"][method] = table
    limit = -math.log(LEVEL)
    weak: defaultdict[str, list[float]] = defaultdict(list)
    for one, (_, name, disguise) in zip(seen, told, strict=True):
        if disguise == "plain":
            weak[name].append(one["ours, p"])
    report["power"] = {
        name: {
            "networks": len(values),
            "below_1e-6": sum(value > limit for value in values),
            "largest_log10_p": -min(values) / math.log(10),
        }
        for name, values in weak.items()
    }
    of_kin = [
        (name, one[FOUND])
        for one, (_, name, disguise) in zip(seen, told, strict=True)
        if disguise == "plain" and one["ours, p"] > limit
    ]
    report["sketches"] = {
        "kin": len(of_kin),
        "found": sum(found > 0 for _, found in of_kin),
        "missed": dict(Counter(name for name, found in of_kin if not found)),
        "strangers_passed": sum(one[FOUND] > 0 for one in far),
    }
    report["false_at_1e-6"] = sum(one["ours, p"] > limit for one in far)
    scores = sorted(one["ours, disguised"] for one in far)
    report["strangers_disguised"] = {"largest": scores[-1], "median": scores[len(scores) // 2]}
    return report


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("TNFN_DATA"))
    parser.add_argument("--zoo", help="independent networks, for p")
    parser.add_argument("--real", type=Path, help="folders of real networks")
    parser.add_argument("--labels", type=Path, help="a table of what they are to each other")
    parser.add_argument("--costs", type=Path, nargs=2, help="two networks, for time and memory")
    parser.add_argument("--no-lineage", action="store_true", help="no networks of our own making")
    parser.add_argument("--out", type=Path, help="where the lineage is kept; a temporary folder")
    parser.add_argument("--roots", type=int, default=10, help="of each architecture")
    parser.add_argument("--independent", type=int, default=150, help=f"of {MANY}")
    parser.add_argument("--pairs", type=int, default=10_000, help="of strangers of the zoo")
    parser.add_argument("--plot", type=Path, help="a picture of p among strangers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one architecture, few of all")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.data is None and not options.no_lineage:
        parser.error("where are the data? --data or the variable TNFN_DATA")
    _calm()
    with (
        tempfile.TemporaryDirectory() as work,
        _pool(1 if options.quick else options.processes) as pool,
    ):
        figures: dict[str, Any] = {}
        if not options.no_lineage:
            home = options.out or Path(work)
            figures["lineage"] = made_lineage(home, options, pool)
        if options.real:
            figures["real"] = real.judge(options.real, options.labels)
        if options.costs:
            figures["costs"] = costs(*options.costs)
        if options.zoo:
            files = export_best(options.zoo, Path(work) / "zoo")
            figures["strangers"] = strangers(files, options.pairs, pool)
            if options.plot:
                plot_ps(figures["strangers"], options.plot)
    return say(figures, as_json=options.json)


def _pool(processes: int) -> Executor:
    """One of one is a thread: nothing is imported again."""
    if processes == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(processes, get_context("spawn"))


def made_lineage(home: Path, options: argparse.Namespace, pool: Executor) -> dict[str, Any]:
    """Make what is not there yet, and ask all methods."""
    kinds = [MANY] if options.quick else list(ARCHITECTURES)
    roots, independent = (1, 5) if options.quick else (options.roots, options.independent)
    steps = 20 if options.quick else 150
    home.mkdir(parents=True, exist_ok=True)
    names = _QUICK_CHANGES if options.quick else _all_changes()
    jobs: list[tuple[str, int, Sequence[str]]] = [
        (kind, seed, names) for seed in range(roots) for kind in kinds
    ]
    jobs += [(MANY, seed, ()) for seed in range(roots, independent)]
    done = [pool.submit(build, *job, options.data, home, steps) for job in jobs]
    for number, job in enumerate(done, start=1):
        print(f"{number} of {len(jobs)}: {job.result()}", file=sys.stderr, flush=True)
    seeds = {kind: list(range(roots)) for kind in kinds}
    count = 10 if options.quick else 2000
    return lineage(home, seeds, names, count, pool)


def _all_changes() -> list[str]:
    return list(changes.changed(MANY, 0, None, Path(), 0))


def export_best(zoo: str, out: Path) -> list[Path]:
    """One network of each run."""
    return sorted(export(Zoo(zoo), pc.field("checkpoint") == "best", out))


def say(figures: dict[str, Any], *, as_json: bool) -> int:
    """Tables, and whether every target is met."""
    checks = {}
    if (known := figures.get("real")) is not None:
        print({name: value for name, value in known.items() if name != "rows"})
        sketches = known["sketches"]
        checks["real"] = not known["wrong"] and known["labelled"] >= 38
        checks["real_sketches"] = sketches["found"] == sketches["kin"] and not sketches["passed"]
    if "lineage" in figures:
        checks |= _say_lineage(figures["lineage"])
    for name, one in figures.get("costs", {}).items():
        print(f"{name:18} {one['seconds']:8.2f} s {one['megabytes']:8.0f} MB")
    if (far := figures.get("strangers")) is not None:
        shares = {alpha: far[f"p <= {alpha}"] for alpha in ALPHAS}
        for alpha, one in shares.items():
            print(f"p <= {alpha}: {one['share']:.5f} of {far['pairs']}, interval {one['interval']}")
        checks["p_holds"] = all(
            max(one["share"], one["disjoint"]) <= alpha for alpha, one in shares.items()
        )
    ok = all(checks.values())
    if as_json:
        print(json.dumps({"figures": figures, "checks": checks, "ok": ok}))
    return 0 if ok else 1


def _say_lineage(found: dict[str, Any]) -> dict[str, bool]:
    print(f"{'method':18}" + "".join(f"{name:>40}" for name in DISGUISES))
    for method, table in found["methods"].items():
        cells = (
            f"AUC {one['auc']:.4f} TPR {one['tpr_1']:.3f} {one['tpr_01']:.3f}"
            for one in table.values()
        )
        print(f"{method:18}" + "".join(f"{cell:>40}" for cell in cells))
    for name, one in found["power"].items():
        print(
            f"{name:18} {one['below_1e-6']} of {one['networks']} at p < 1e-6, the largest "
            f"10^{one['largest_log10_p']:.0f}"
        )
    hidden = {name: table["all moved"]["auc"] for name, table in found["methods"].items()}
    ours = hidden.pop("ours, disguised")
    return {
        "power": all(
            one["below_1e-6"] == (0 if name in changes.STRANGERS else one["networks"])
            for name, one in found["power"].items()
        ),
        "no_false": found["false_at_1e-6"] == 0,
        "sketches_find": found["sketches"]["found"] >= 0.99 * found["sketches"]["kin"],
        "sketches_pass_few": found["sketches"]["strangers_passed"]
        <= 0.001 * found["stranger_pairs"],
        "ahead_in_disguise": ours >= max(hidden.values()),
    }


if __name__ == "__main__":
    sys.exit(main())
