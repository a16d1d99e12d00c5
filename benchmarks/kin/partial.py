"""Fingerprints of some blocks only: what they read, and what they no longer tell apart.

    python benchmarks/kin/partial.py --real ../real --zoo mnist-small-residual --json
    python benchmarks/kin/partial.py --quick --json

Small networks of 6 blocks are compared with copies in disguise, near copies (noise on every weight,
hidden behind an element), strangers, and networks of which one block or only the heads were changed
by 1 %. For each choice of blocks: the share of pairs that are judged right, and the gap between a
kind and the next. A copy or a stranger misjudged fails; a changed block that is not read cannot be
seen, and how often is what is measured. With a zoo of nets with skip connections: how many pairs of
trained nets of two runs are called kin. With real files: the bytes and the time.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.kin.fingerprint import moved, noisy
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.kinship import (
    Distance,
    distance,
    fingerprint,
    fingerprints,
)

CHOICES = ("all", "first", "middle", "last", "first,last", "first,middle,last")
FAMILIES = ("gpt2", "bert", "vit", "llama", "qwen2")
BLOCKS = 6
NOISE = (0.003, 0.01, 0.05)
#: What a pair of each kind is; a change is told from a copy, whatever else it is called.
EXPECTED = {
    "copy": ("copy",),
    **{f"noise {share:.1%}": ("related",) for share in NOISE},
    "one block": ("related", "stranger"),
    "outside": ("related", "stranger"),
    "stranger": ("stranger",),
}


def deep(family: str, folder: Path, seed: int) -> Path:
    name = "n_layer" if family == "gpt2" else "num_hidden_layers"
    return made.save(made.model(family, seed, **{name: BLOCKS}), folder)


def touched(start: Path, out: Path, seed: int, wanted: Callable[[Checkpoint, str], bool]) -> Path:
    """Noise of 1 % on some tensors."""
    generator = torch.Generator().manual_seed(seed)

    def changed(checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        for name in checkpoint.files:
            value = checkpoint.files.read(name)
            if wanted(checkpoint, name) and value.is_floating_point():
                size = value.square().mean().sqrt() * 0.01
                yield name, value + torch.randn(value.shape, generator=generator) * size

    with Checkpoint(start) as checkpoint:
        return rewrite(checkpoint, changed(checkpoint), out)


def pairs(family: str, work: Path, seeds: int) -> Iterator[tuple[str, Path]]:
    """Kinds, and files to compare with the first."""
    start = work / "first"
    for seed in range(seeds):
        yield "copy", moved(start, work / f"copy-{seed}", seed, 100.0)
        for share in NOISE:
            plain = noisy(start, work / f"noisy-{share}-{seed}", seed, share)
            yield f"noise {share:.1%}", moved(plain, work / f"hidden-{share}-{seed}", seed, 10.0)
        block = seed % BLOCKS
        one = touched(
            start,
            work / f"block-{seed}",
            seed,
            lambda checkpoint, name, b=block: name.startswith(checkpoint.block_name(b)),
        )
        yield "one block", one
        outside = touched(
            start,
            work / f"outside-{seed}",
            seed,
            lambda checkpoint, name: (
                name in {h.weight for h in checkpoint.heads.values()} or name in checkpoint.others
            ),
        )
        yield "outside", outside
        yield "stranger", deep(family, work / f"stranger-{seed}", seed + 1)


def measure(family: str, work: Path, seeds: int) -> dict[str, dict[str, list[Distance]]]:
    found: dict[str, dict[str, list[Distance]]] = {choice: defaultdict(list) for choice in CHOICES}
    start = deep(family, work / "first", 0)
    first = {choice: fingerprint(start, blocks=choice) for choice in CHOICES}
    for kind, path in pairs(family, work, seeds):
        for choice in CHOICES:
            found[choice][kind].append(distance(first[choice], fingerprint(path, blocks=choice)))
    return found


def summary(kinds: dict[str, list[Distance]]) -> dict[str, float]:
    """The share of each kind that is judged right, and the gaps: above 1 nothing overlaps."""
    right = {
        kind: sum(one.kinship.value in EXPECTED[kind] for one in found) / len(found)
        for kind, found in kinds.items()
    }
    near, far = kinds["noise 5.0%"], kinds["stranger"]
    copy, nearest = kinds["copy"], kinds["noise 0.3%"]
    return {
        **right,
        "gap copy": min(d.largest for d in nearest) / max(d.largest for d in copy),
        "gap stranger": min(d.median for d in far) / max(d.median for d in near),
    }


def trained(zoo: str, runs: int, work: Path) -> dict[str, dict[str, int]]:
    """Nets of a zoo: pairs of one run and of two runs, and how many of them are called kin."""
    import pyarrow.compute as pc

    from transformer_nfn.zoo import export
    from transformer_nfn.zoo.dataset import Zoo

    paths = export(Zoo(zoo), pc.field("run") < runs, work)
    run = [path.name.partition("-")[0] for path in paths]
    same = sum(run.count(one) - 1 for one in run) // 2
    found = {}
    for choice in ("all", "first", "last"):
        prints, broken, _ = fingerprints(paths, blocks=choice)
        assert not broken
        links = Index.of(prints).pairs()
        within = sum(run[i] == run[j] for i, j, _, _ in links)
        found[choice] = {
            "pairs_of_a_run": same,
            "pairs_of_a_run_that_are_kin": within,
            "pairs_of_two_runs": len(run) * (len(run) - 1) // 2 - same,
            "pairs_of_two_runs_called_kin": len(links) - within,
        }
    return found


def cost(path: Path) -> dict[str, dict[str, float]]:
    """Share of a file that is read, and seconds, the best of five."""
    found = {}
    for choice in CHOICES:
        seconds = []
        for _ in range(5):
            start = time.perf_counter()
            with Checkpoint(path) as checkpoint:
                fingerprint(checkpoint, blocks=choice)
                share = checkpoint.files.bytes_read / checkpoint.files.size
            seconds.append(time.perf_counter() - start)
        found[choice] = {"share_read": share, "seconds": min(seconds)}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("TNFN_REAL", str(Path(__file__).resolve().parents[3] / "real"))
    parser.add_argument("--real", type=Path, default=Path(default), help="see real_weights.py")
    parser.add_argument("--zoo", help="a zoo's folder, its nets having skip connections")
    parser.add_argument("--quick", action="store_true", help="few small networks only")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    seeds = 2 if options.quick else 12
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    skipped = []
    together: dict[str, dict[str, list[Distance]]] = {c: defaultdict(list) for c in CHOICES}
    with tempfile.TemporaryDirectory() as folder:
        for family in FAMILIES[:2] if options.quick else FAMILIES:
            for choice, kinds in measure(family, Path(folder) / family, seeds).items():
                for kind, found in kinds.items():
                    together[choice][kind] += found
        if options.zoo:
            figures["trained"] = trained(options.zoo, 128, Path(folder) / "zoo")
            print("trained nets", json.dumps(figures["trained"]))
        else:
            skipped.append("trained nets: no --zoo given")
    for choice, kinds in together.items():
        figures[choice] = summary(kinds)
        print(f"{choice:<18}", {name: float(f"{v:.3g}") for name, v in figures[choice].items()})
    for name in ("minilm", "smollm", "tuned"):
        if options.quick or not (options.real / name / "model.safetensors").exists():
            skipped.append(f"{name}: --quick, or not in {options.real}, see tools/real_weights.py")
            continue
        figures[f"cost {name}"] = cost(options.real / name)
        print(name, json.dumps(figures[f"cost {name}"]))
    checks = {
        "copies": all(figures[choice]["copy"] == 1 for choice in CHOICES),
        "strangers": all(figures[choice]["stranger"] == 1 for choice in CHOICES),
        "whole_sees_all": all(figures["all"][kind] == 1 for kind in EXPECTED),
    }
    for reason in skipped:
        print(f"skipped {reason}")
    ok = all(checks.values())
    if options.json:
        print(json.dumps({"figures": figures, "checks": checks, "skipped": skipped, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
