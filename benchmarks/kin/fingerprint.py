"""Fingerprints: what the group changes of them, what fine-tuning does, and what they cost.

    python benchmarks/kin/fingerprint.py --real ../real --zoo digits-mini --json
    python benchmarks/kin/fingerprint.py --quick --json

Small networks of every family are moved by random elements of all parts of their groups; no number
of their fingerprints may move by more than 1e-4 in float32. Copies, near copies (noise of 0.3 to
5 % on every weight, hidden behind an element as well) and strangers of some families set the limits
of `kinship/distances.py`, and other families and real files check them. With the real files of
`tools/real_weights.py` it measures time against SHA-256, and memory in a process of its own. With a
zoo, trained nets of different runs must be strangers.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.identity import apply_element, random_net_element
from transformer_nfn.kinship import (
    COPY,
    NEAR,
    Distance,
    Fingerprint,
    Index,
    distance,
    fingerprint,
    fingerprints,
)

CHANGE, TIMES, APART = 1e-4, 3.0, 10.0
FITTED = ("gpt2", "bert", "llama")
HELD_OUT = ("vit", "qwen2", "gpt2-relu", "zoo-paper", "zoo-residual", "zoo-text")
NOISE = (0.003, 0.01, 0.02, 0.05)
#: Largest condition number of the matrices of a copy, by dtype: what `COPY` promises.
CONDITIONS = {torch.float32: 100.0, torch.float16: 10.0, torch.bfloat16: 10.0}


def small(family: str, folder: Path, seed: int) -> Path:
    if family.startswith("zoo"):
        block = "residual" if family == "zoo-residual" else "paper"
        made.zoo_net(folder / "model.safetensors", block, seed, text=family == "zoo-text")
        return folder
    change = {"activation_function": "relu"} if family == "gpt2-relu" else {}
    return made.save(made.model(family.partition("-")[0], seed, **change), folder)


def stored_as(start: Path, out: Path, dtype: torch.dtype) -> Path:
    """The same weights rounded to another dtype."""
    from safetensors.torch import load_file, save_file

    with Checkpoint(start) as checkpoint:
        metadata = dict(checkpoint.files.shards[0][1].metadata)
    out.mkdir()
    tensors = {name: t.to(dtype) for name, t in load_file(start / "model.safetensors").items()}
    save_file(tensors, out / "model.safetensors", metadata)
    if (start / "config.json").exists():
        shutil.copy(start / "config.json", out)
    return out


def moved(start: Path, out: Path, seed: int, condition: float) -> Path:
    with Checkpoint(start) as checkpoint:
        generator = torch.Generator().manual_seed(seed)
        element = random_net_element(checkpoint, generator, condition=condition)
        return apply_element(checkpoint, element, out)


def noisy(start: Path, out: Path, seed: int, share: float) -> Path:
    """A near copy: noise on every weight, relative to the size of its tensor."""
    generator = torch.Generator().manual_seed(seed)

    def changed(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        for name in checkpoint.files:
            value = checkpoint.files.read(name).float()
            if value.numel():
                size = value.square().mean().sqrt() * share
                yield name, value + torch.randn(value.shape, generator=generator) * size

    with Checkpoint(start) as checkpoint:
        return rewrite(checkpoint, changed(checkpoint), out)


def stranger(start: Path, out: Path, seed: int) -> Path:
    """Names and shapes of a file, and random weights of the same size in each tensor."""
    generator = torch.Generator().manual_seed(seed)

    def changed(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        for name in checkpoint.files:
            value = checkpoint.files.read(name)
            if value.is_floating_point():
                mean, size = value.float().mean(), value.float().std(correction=0)
                yield name, torch.randn(value.shape, generator=generator) * size + mean

    with Checkpoint(start) as checkpoint:
        return rewrite(checkpoint, changed(checkpoint), out)


def measure(family: str, work: Path, seeds: int) -> tuple[dict[str, list[Distance]], int]:
    """Distances of copies by dtype, near copies by noise, and strangers; how many are misjudged."""
    found: dict[str, list[Distance]] = defaultdict(list)
    wrong = 0
    start = small(family, work / "first", 0)
    first = fingerprint(start)

    def note(kind: str, expected: str, a: Fingerprint, b: Fingerprint) -> None:
        nonlocal wrong
        found[kind].append(distance(a, b))
        wrong += found[kind][-1].kinship.value != expected

    for dtype, condition in CONDITIONS.items():
        name = str(dtype).removeprefix("torch.")
        base = stored_as(start, work / name, dtype)
        for seed in range(seeds):
            other = fingerprint(moved(base, work / f"{name}-{seed}", seed, condition))
            note(f"copy {name}", "copy", fingerprint(base), other)
    for share in NOISE:
        for seed in range(seeds):
            plain = noisy(start, work / f"noisy-{share}-{seed}", seed, share)
            hidden = moved(plain, work / f"hidden-{share}-{seed}", seed, 10.0)
            note(f"near {share:.1%}", "related", first, fingerprint(hidden))
    for seed in range(1, seeds + 1):
        other = fingerprint(small(family, work / f"stranger-{seed}", seed))
        note("stranger", "stranger", first, other)
    return found, wrong


def table(measured: dict[str, dict[str, list[Distance]]]) -> dict[str, dict[str, list[float]]]:
    """For each kind the smallest and largest of the figure that judges it."""
    rows: dict[str, dict[str, list[float]]] = {}
    for family, kinds in measured.items():
        for kind, found in kinds.items():
            # A copy is judged by its largest part, anything else by its median one.
            figures = [one.largest if kind.startswith("copy") else one.median for one in found]
            rows.setdefault(kind, {})[family] = [min(figures), max(figures)]
    for kind, families in rows.items():
        low, high = min(v[0] for v in families.values()), max(v[1] for v in families.values())
        worst = max(families, key=lambda name: families[name][1])
        print(f"  {kind:<16} {low:8.1e} to {high:8.1e}  (largest: {worst})")
    return rows


# -------------------------------------------------------------------------------- real files


def real_distances(real: Path, work: Path) -> dict[str, float]:
    """MiniLM against a copy, a copy in disguise, a fine-tune, and random weights."""
    first = fingerprint(real / "minilm")
    others = {
        "copy": real / "copy",
        "disguised": moved(real / "minilm", work / "disguised", 0, 100.0),
        "tuned": real / "tuned",
        "stranger": stranger(real / "minilm", work / "random", 0),
    }
    figures: dict[str, float] = {}
    for name, path in others.items():
        far = distance(first, fingerprint(path))
        print(
            f"  {name:<10} largest {far.largest:.1e}, median {far.median:.1e}: {far.kinship.value}"
        )
        figures |= {f"{name}_median": far.median, f"{name}_largest": far.largest}
        figures[f"{name}_right"] = float(far.kinship.value == EXPECTED[name])
    return figures


EXPECTED = {
    "copy": "copy", "disguised": "copy", "tuned": "related", "stranger": "stranger",
}  # fmt: skip


def best(work: Callable[[], object], times: int = 9) -> float:
    found = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def times(real: Path) -> dict[str, float]:
    """Both of the same file, from the page cache; threads as torch has them, and one."""
    file = real / "minilm" / "model.safetensors"
    figures = {"threads": torch.get_num_threads()}
    hashing = best(lambda: digest(file))
    figures |= {"sha256_s": hashing, "fingerprint_s": best(lambda: fingerprint(file))}
    torch.set_num_threads(1)
    figures["fingerprint_one_thread_s"] = best(lambda: fingerprint(file))
    figures["times_sha256"] = figures["fingerprint_s"] / hashing
    figures["times_sha256_one_thread"] = figures["fingerprint_one_thread_s"] / hashing
    return figures


CHILD = """
import sys
import torch
from transformer_nfn.kinship import fingerprint

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

before = peak()
if sys.argv[2:]:
    torch.ones(int(sys.argv[2]) * 250_000)
else:
    fingerprint(sys.argv[1])
print(before, peak())
"""


def growth(*arguments: object) -> float:
    """Megabytes that a fresh process grows by after its imports.

    VmHWM, not ru_maxrss: that one a process inherits from its parent, which is larger.
    """
    words = [sys.executable, "-c", CHILD, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    before, after = (int(word) * 1024 for word in done.stdout.split())
    return (after - before) / 1e6


def memory(path: Path) -> dict[str, float]:
    """The peak of a fingerprint, the largest tensor, and what the meter says of 100 MB."""
    with Checkpoint(path) as checkpoint:
        largest = max(e.end - e.begin for e in checkpoint.files.entries.values())
        size = checkpoint.files.size
    return {
        "peak_mb": growth(path),
        "meter_of_100_mb": growth(path, 100),
        "largest_tensor_mb": largest / 1e6,
        "allowed_mb": (2 * largest + 200e6) / 1e6,
        "file_mb": size / 1e6,
    }


def trained(zoo: str, runs: int, work: Path) -> dict[str, float]:
    """Nets of a zoo, each run from a seed of its own: no two runs may be kin."""
    import pyarrow.compute as pc

    from transformer_nfn.zoo import export
    from transformer_nfn.zoo.dataset import Zoo

    paths = export(Zoo(zoo), pc.field("run") < runs, work)
    prints, broken, _ = fingerprints(paths)
    assert not broken
    run = [path.name.partition("-")[0] for path in paths]
    links = Index.of(prints).pairs()
    within = sum(run[i] == run[j] for i, j, _, _ in links)
    pairs = len(run) * (len(run) - 1) // 2
    same = sum(run.count(one) - 1 for one in run) // 2
    return {
        "runs": len(set(run)),
        "pairs_of_a_run": same,
        "pairs_of_a_run_that_are_kin": within,
        "pairs_of_two_runs": pairs - same,
        "pairs_of_two_runs_called_kin": len(links) - within,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("TNFN_REAL", str(Path(__file__).resolve().parents[3] / "real"))
    parser.add_argument("--real", type=Path, default=Path(default), help="see real_weights.py")
    parser.add_argument("--zoo", help="a zoo's folder, its runs having seeds of their own")
    parser.add_argument("--quick", action="store_true", help="small networks only, few of them")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    seeds = 1 if options.quick else 12
    figures: dict[str, Any] = {}
    skipped = []
    checks: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.quick:
            skipped.append("real files: --quick")
        elif (options.real / "minilm").exists():
            figures["times"] = times(options.real)
            print("time", {name: round(value, 3) for name, value in figures["times"].items()})
            checks["time"] = figures["times"]["times_sha256"] <= TIMES
            print("MiniLM against:")
            far = figures["real"] = real_distances(options.real, work)
            checks["real_change"] = far["disguised_largest"] <= CHANGE
            checks["real_apart"] = (
                far["tuned_median"] >= APART * far["disguised_median"]
                and far["stranger_median"] >= APART * far["tuned_median"]
            )
            checks["real_kinship"] = all(far[f"{name}_right"] for name in EXPECTED)
        else:
            skipped.append(f"MiniLM: {options.real} has none, see tools/real_weights.py")
        if not options.quick and (options.real / "smollm" / "model.safetensors").exists():
            figures["memory"] = memory(options.real / "smollm")
            print("memory", {name: round(value) for name, value in figures["memory"].items()})
            checks["memory"] = figures["memory"]["peak_mb"] <= figures["memory"]["allowed_mb"]
            checks["memory_is_measured"] = 95 <= figures["memory"]["meter_of_100_mb"] <= 120
        elif not options.quick:
            skipped.append(f"memory: {options.real} has no smollm, see tools/real_weights.py")
        if options.zoo:
            figures["trained"] = trained(options.zoo, 128, work / "zoo")
            print("trained nets", figures["trained"])
            checks["trained"] = not figures["trained"]["pairs_of_two_runs_called_kin"]
        else:
            skipped.append("trained nets: no --zoo given")
        measured, wrong = {}, {}
        torch.set_num_threads(1)
        for family in (*FITTED, *HELD_OUT):
            (work / family).mkdir()
            measured[family], wrong[family] = measure(family, work / family, seeds)
        for name, families in (("fitted", FITTED), ("held_out", HELD_OUT)):
            print(f"{name.replace('_', ' ')}: {', '.join(families)}")
            figures[name] = table({family: measured[family] for family in families})
            checks[f"{name}_kinship"] = not sum(wrong[family] for family in families)
    figures["limits"] = {"copy": dict(COPY), "near": NEAR}
    figures["largest_change"] = max(
        one.largest for kinds in measured.values() for one in kinds["copy float32"]
    )
    figures["misjudged"] = wrong
    figures["pairs"] = sum(len(found) for kinds in measured.values() for found in kinds.values())
    checks["change"] = figures["largest_change"] <= CHANGE
    print(f"largest change under the group, float32: {figures['largest_change']:.1e}")
    print(f"misjudged: {sum(wrong.values())} of {figures['pairs']} pairs")
    for reason in skipped:
        print(f"skipped {reason}")
    ok = all(checks.values())
    if options.json:
        targets = {"change": CHANGE, "times_sha256": TIMES, "apart": APART}
        print(json.dumps({
            "figures": figures, "targets": targets, "checks": checks, "skipped": skipped, "ok": ok,
        }))  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
