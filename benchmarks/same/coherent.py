"""The smallest coherent change that `same` tells from rounding, in bfloat16, as a curve.

    python benchmarks/same/coherent.py --out FOLDER --json
    python benchmarks/same/coherent.py --out FOLDER --real REAL --real-seeds 1
    python benchmarks/same/coherent.py --quick --json

A change of rank one in every matrix, each number of it a multiple of what storing that matrix
rounds, is added to a member of the orbit before it is stored. Drawn for a small Llama of 2 blocks,
and with `--real` (a folder from `tools/real_weights.py`) for SmolLM2-135M with 30: the share of
verdicts that are not "the same" over the size of the change, and how far the outputs are apart, in
units of rounding. Size 0 is an honest copy.

Targets: an honest copy is never told from its original, no pair whose outputs are beyond the line
of a forgery is called the same, and the largest size is always told.

FOLDER gets `results.jsonl`, where a second run goes on, `coherent.json` and `coherent.png`.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from torch import Tensor

from benchmarks.same.forging.bases import rng
from benchmarks.same.forging.budget import rounding
from benchmarks.same.forging.draft import dithered
from benchmarks.same.forging.measure import LINE, draw
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.identity import changes, random_net_element, run, same, symmetry_parts
from transformer_nfn.identity.comparing.rounding import jittered

DTYPE = torch.bfloat16
SIZES = (0.0, 0.03, 0.06, 0.1, 0.18, 0.3, 0.56, 1.0, 1.8, 3.0, 5.6, 10.0)
#: Of the element; what leaves the embedding alone is cheaper for a large vocabulary.
CONDITION = 2.0
#: Sizes and verdicts of the quick form.
QUICK_SIZES, QUICK_SEEDS = (0.0, 0.3, 1.0, 10.0), 3
_INPUTS = {2: 256, 30: 4}
_JITTERS = {2: 6, 30: 2}


def small(home: Path, seed: int) -> Path:
    """A Llama of 2 blocks."""
    folder = home / f"small-{seed}"
    if not folder.exists():
        made.save(made.model("llama", seed), folder, DTYPE)
    return folder


def real(home: Path, weights: Path) -> Path:
    """SmolLM2 in bfloat16."""
    folder = home / "smollm"
    if not folder.exists():
        from safetensors.torch import load_file, save_file

        (home / "part").mkdir(exist_ok=True)
        stored = {n: t.to(DTYPE) for n, t in load_file(weights / "model.safetensors").items()}
        save_file(stored, home / "part" / "model.safetensors", {"format": "pt"})
        shutil.copy(weights / "config.json", home / "part")
        (home / "part").rename(folder)
    return folder


def changed(base: Path, out: Path, size: float, seed: int) -> Path:
    """A member of the orbit with a coherent change, rounded once."""
    generator = rng("coherent", seed)
    with Checkpoint(base) as checkpoint:
        parts = [p for p in symmetry_parts(checkpoint) if p not in ("basis", "ones", "norms")]
        element = random_net_element(checkpoint, generator, parts=parts, condition=CONDITION)
        return rewrite(checkpoint, _tensors(checkpoint, element, size, generator), out)


def _tensors(
    checkpoint: Checkpoint, element: object, size: float, generator: torch.Generator
) -> Iterator[tuple[str, Tensor]]:
    seen = set()
    for name, value in changes(checkpoint, element):
        seen.add(name)
        yield name, value + size * rank_one(value, generator)
    for name in checkpoint.files:
        value = checkpoint.files.read(name)
        if name not in seen and value.is_floating_point():
            # These numbers are on the dtype's grid: to nearest, a small change would be lost.
            exact = value.double() + size * rank_one(value.double(), generator)
            yield name, dithered(exact, value.dtype, generator)


def rank_one(value: Tensor, generator: torch.Generator) -> Tensor:
    """Rank one, each number on average as large as the rounding of the stored ones."""
    if value.dim() < 2:
        return torch.zeros_like(value)
    flat = value.flatten(1)
    one = torch.randn(flat.shape[0], 1, generator=generator, dtype=torch.float64)
    two = torch.randn(1, flat.shape[1], generator=generator, dtype=torch.float64)
    change = one @ two
    level = rounding(value, DTYPE).square().mean().sqrt()
    return (change * (level / change.square().mean().sqrt())).view(value.shape)


def outputs_apart(ours: Checkpoint, theirs: Checkpoint) -> float:
    """How far the outputs are apart, in units of what rounding does to the second."""
    inputs = draw(ours, _INPUTS.get(ours.blocks, 4), 24, 5)
    one, two = (next(iter(run(c, inputs).values())) for c in (ours, theirs))
    squares = [
        (next(iter(run(jittered(theirs, seed=10**6 + j), inputs).values())) - two).square().mean()
        for j in range(_JITTERS.get(ours.blocks, 2))
    ]
    return ((one - two).square().mean() / torch.stack(squares).mean()).sqrt().item()


def point(base: Path, home: Path, net: str, size: float, seed: int) -> dict[str, object]:
    """One verdict."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=home) as work:
        other = changed(base, Path(work) / "b", size, seed)
        with Checkpoint(base) as ours, Checkpoint(other) as theirs:
            # An input that shows it would decide between "different" and "not decided" only.
            verdict = same(ours, theirs, search=False)
            asked = time.monotonic()
            apart = outputs_apart(ours, theirs)
    return {
        "net": net, "size": size, "seed": seed, "answer": verdict.answer.value,
        "same": verdict.answer.same_function, "apart": round(apart, 3),
        "reason": verdict.reason[:120], "seconds": round(asked - begin, 1),
    }  # fmt: skip


def curve(results: list[dict], net: str) -> dict[str, list[float]]:
    """For each size the share of verdicts that are not "the same", and the outputs."""
    rows = [r for r in results if r["net"] == net]
    sizes = sorted({r["size"] for r in rows})
    of = {size: [r for r in rows if r["size"] == size] for size in sizes}
    return {
        "size": sizes,
        "told": [sum(not r["same"] for r in of[s]) / len(of[s]) for s in sizes],
        "apart": [sum(r["apart"] for r in of[s]) / len(of[s]) for s in sizes],
        "verdicts": [len(of[s]) for s in sizes],
        "answers": [sorted({r["answer"] for r in of[s]}) for s in sizes],
    }


def smallest(found: dict[str, list]) -> float | None:
    """From which size on all verdicts tell it."""
    told = None
    for size, share in reversed(list(zip(found["size"], found["told"], strict=True))):
        if share < 1:
            break
        told = size
    return told


def picture(curves: dict[str, dict], path: Path) -> None:
    """Both curves, above each other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for (net, found), colour in zip(curves.items(), ("tab:blue", "tab:orange"), strict=False):
        points = [i for i, size in enumerate(found["size"]) if size > 0]
        x = [found["size"][i] for i in points]
        count = max(found["verdicts"])
        label = f"{net}, {count} verdict{'s' if count > 1 else ''} each size"
        above.plot(x, [found["told"][i] for i in points], "o-", color=colour, label=label)
        below.plot(x, [found["apart"][i] for i in points], "o-", color=colour, label=net)
        if found["size"][0] == 0:
            label = f"{net}: an honest copy"
            below.axhline(found["apart"][0], color=colour, ls=":", lw=1, label=label)
    above.set(ylabel='share not "the same"', ylim=(-0.05, 1.05))
    above.set_title("A coherent change in bfloat16: rank one in every matrix")
    above.legend(loc="lower right", fontsize=8)
    below.axhline(LINE, color="black", ls="--", lw=1, label="beyond: a forgery")
    below.legend(loc="upper left", fontsize=8)
    below.set(
        xscale="log",
        yscale="log",
        ylabel="outputs apart, in roundings",
        xlabel="size of each number of the change, in root mean square roundings",
    )
    for axis in (below.xaxis, below.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("")
    below.set_yticks([1, 2, 4, 10, 20], minor=False)
    figure.savefig(path, dpi=150)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="where to write; nowhere if not given")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SEEDS} of {QUICK_SIZES}")
    parser.add_argument("--real", type=Path, help="a folder from tools/real_weights.py")
    parser.add_argument("--seeds", type=int, default=20, help="verdicts for each size")
    parser.add_argument("--real-seeds", type=int, default=1, help="of SmolLM2, which takes minutes")
    parser.add_argument("--sizes", type=float, nargs="*", default=SIZES)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.sizes, arguments.seeds = QUICK_SIZES, QUICK_SEEDS
    with tempfile.TemporaryDirectory() as nowhere:
        report = measured(arguments, arguments.out or Path(nowhere))
    if arguments.json:
        print(json.dumps(report))
    return 0 if report["ok"] else 1


def measured(arguments: argparse.Namespace, out: Path) -> dict[str, object]:
    """All verdicts, the curves and their picture."""
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    lines = out / "results.jsonl"
    results = (
        [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    )
    known = {(r["net"], r["size"], r["seed"]) for r in results}
    home = out / "nets"
    home.mkdir(exist_ok=True)
    jobs = [("2 blocks", size, s) for s in range(arguments.seeds) for size in arguments.sizes]
    if arguments.real:
        wanted = range(arguments.real_seeds)
        jobs += [("30 blocks (SmolLM2)", size, s) for s in wanted for size in arguments.sizes]
    for net, size, seed in jobs:
        if (net, size, seed) in known:
            continue
        is_real = net.startswith("30")
        base = real(home, arguments.real / "smollm") if is_real else small(home, seed)
        result = point(base, home, net, size, seed)
        results.append(result)
        with lines.open("a") as file:
            file.write(json.dumps(result) + "\n")
        if is_real:
            print(json.dumps(result), file=sys.stderr)
    curves = {net: curve(results, net) for net in dict.fromkeys(r["net"] for r in results)}
    passed = [r for r in results if r["same"] and r["apart"] > LINE]
    unlike = [r for r in results if r["size"] == 0 and not r["same"]]
    told_from = {net: smallest(found) for net, found in curves.items()}
    report = {
        "dtype": "bfloat16",
        "curves": curves,
        "told_from": told_from,
        "honest_not_the_same": len(unlike),
        "forgeries_passed": len(passed),
        "targets": {"honest_not_the_same": 0, "forgeries_passed": 0, "largest_size_told": True},
        "ok": not passed and not unlike and None not in told_from.values(),
    }
    (out / "coherent.json").write_text(json.dumps(report, indent=1))
    picture(curves, out / "coherent.png")
    for net, found in curves.items():
        print(f"{net}: told from rounding from size {told_from[net]} on")
        for row in zip(*(found[k] for k in ("size", "told", "apart", "answers")), strict=True):
            print("  size {:5}: told {:.2f}, outputs apart {:8.2f} roundings, {}".format(*row))
    return report


if __name__ == "__main__":
    sys.exit(main())
