"""Every architecture that is read against `transformers`: its function, its group, verdicts.

    python benchmarks/same/families.py --json
    python benchmarks/same/families.py --quick --json
    python benchmarks/same/families.py --families gemma3_text qwen3

For a tiny network of each, all norms and biases random, made and run by `transformers`:

- function: our outputs in float64 against its, with its float32 steps replaced (at most 1e-9) and
  as it is (1e-5); `material.families.PATCHED` lists them;
- parts: its outputs after a random element of each part of the group, and of all together, in
  float64 with these steps replaced (1e-10) and in float32 (1e-4);
- controls: what looks like a symmetry and is none must change the outputs by more than 1e-3;
- verdicts: members of the orbit are equivalent, members with one thing wrong are not the same;
- fingerprint: how far all parts together move it, relative to its size (1e-4).
"""

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.material.families import (
    ARCHITECTURES,
    PATCHED,
    as_float32,
    as_one,
    exact,
    inputs,
    load,
    make,
    outputs,
)
from benchmarks.same.verdicts import edit
from tests.checkpoints.made import unchecked
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.group import conditioned
from transformer_nfn.identity import (
    NetElement,
    apply_element,
    random_net_element,
    run,
    same,
    symmetry_parts,
)
from transformer_nfn.identity.elements.sampling import random_basis
from transformer_nfn.kinship import distance, fingerprint
from transformer_nfn.space import Kind, StreamKind

TARGETS = {
    "exact": 1e-9, "plain": 1e-5, "float64": 1e-10, "float32": 1e-4, "control": 1e-3,
    "fingerprint": 1e-4,
}  # fmt: skip
_QUICK = ("gpt_neox", "gemma3_text", "qwen3", "roberta")


def relative(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


def function_error(folder: Path, given: dict[str, Tensor], wanted: Tensor) -> float:
    """Our outputs against given ones: of all heads the one that has their shape."""
    with Checkpoint(folder) as checkpoint:
        found = run(checkpoint, as_one(given))
    fitting = [out for out in found.values() if out.numel() == wanted.numel()]
    return min((relative(out.reshape(wanted.shape), wanted) for out in fitting), default=torch.inf)


def moved(folder: Path, out: Path, seed: int, **options: Any) -> Path:
    """A random member of the orbit."""
    with Checkpoint(folder) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(seed), **options)
        return apply_element(checkpoint, element, out)


def controls(checkpoint: Checkpoint, work: Path) -> Iterator[tuple[str, Path]]:
    """By name what is no symmetry of this network, though it would be one of another."""
    generator = torch.Generator().manual_seed(0)
    block, batch = checkpoint.spec.block, checkpoint.block(0)
    axes = block.axes

    def changed(name: str, tensors: dict[str, Tensor]) -> tuple[str, Path]:
        packed = checkpoint.pack(0, batch.replace(tensors)).items()
        return name, rewrite(checkpoint, packed, work / name.replace(" ", "-"))

    def rolled(names: Iterable[str]) -> dict[str, Tensor]:
        """Heads or experts, the first axis of each, in another order."""
        return {name: batch[name].roll(1, dims=3) for name in names}

    if axes["k"].kind is not Kind.LINEAR:
        groups, size = batch["K"].shape[3], checkpoint.spec.size("k")
        M = conditioned(10.0)((groups,), size, generator)
        Q = torch.einsum("nclg...k,gkj->nclg...j", batch["Q"], M)
        K = torch.einsum("nclgzk,gjk->nclgzj", batch["K"], torch.linalg.inv(M))
        yield changed("GL of queries and keys", {"Q": Q, "K": K})
    if axes["k"].kind is Kind.SIGNED:
        # So small that the norm's ε counts; nearer to 1 it is almost a symmetry.
        yield changed("scale of a head", {"Q": batch["Q"] * 2**-12})
        if "g" in [index.label for index in block.tensors["nQ"]]:
            yield changed("heads without the scales of their norms", rolled("QKVO"))
        signs = torch.ones(checkpoint.spec.size("k"), dtype=torch.float64)
        signs[0] = -1
        yield changed("one sign of a pair", {"Q": batch["Q"] * signs, "K": batch["K"] * signs})
    if "A" in batch and "s" not in axes:
        scaled = {"A": batch["A"] * 2, "bA": batch["bA"] * 2, "B": batch["B"] / 2}
        yield changed("scale of neurons", scaled)
    if "h" in axes and axes["h"].kind is Kind.FREE:
        yield changed("order of heads", rolled("QKVO"))
    if "u" in axes:
        yield changed("experts without the router", rolled(("gate", "up", "down")))
        router = batch["router"].clone()
        router[..., 0] += router.square().mean().sqrt()
        yield changed("shift of one expert's scores", {"router": router})
    if checkpoint.stream_kind not in (StreamKind.ORTHOGONAL, StreamKind.FIXED):
        layer = checkpoint.settings.norm == "layer"
        basis = random_basis(checkpoint.D, generator, fix_ones=layer)
        element = NetElement.identity(checkpoint.spec, checkpoint.blocks)
        turned = NetElement(element.blocks, {0: basis}, element.gauges)
        with contextlib.suppress(Exception):  # norms that have no place for what would follow
            yield "basis of the stream", unchecked(checkpoint, turned, work / "basis")


def spoiled(folder: Path, out: Path, seed: int) -> Path:
    """A member of the orbit with one thing wrong: values of two heads exchanged, or a neuron."""
    with Checkpoint(folder) as checkpoint:
        number, batch = seed % checkpoint.blocks, checkpoint.block(seed % checkpoint.blocks)
        several = batch["V"].shape[3] > 1
        miss = "vo" if several and seed % 2 else "neuron"
        generator = torch.Generator().manual_seed(seed)
        wrong = edit(batch, miss, generator, torch.float32)
        return rewrite(checkpoint, checkpoint.pack(number, wrong).items(), out)


def check(name: str, home: Path, verdicts: int, parts_alone: bool) -> dict[str, Any]:
    """All checks of one architecture."""
    double = make(name, home / "double")
    single = as_float32(double, home / "single")
    given = inputs(double)
    plain = outputs(load(double), given)
    before = outputs(exact(load(double)), given)
    found: dict[str, Any] = {
        "exact": function_error(double, given, before),
        "plain": function_error(double, given, plain),
    }
    single_before = outputs(load(single, torch.float32), given)
    with Checkpoint(double) as checkpoint:
        parts = list(symmetry_parts(checkpoint))
        shown = list(controls(checkpoint, home))
    found["float64"], found["float32"] = {}, {}
    for part in (*(parts if parts_alone else ()), "all"):
        options = {} if part == "all" else {"parts": [part]}
        out = moved(double, home / f"{part}-64", 1, **options)
        found["float64"][part] = relative(outputs(exact(load(out)), given), before)
        out = moved(single, home / f"{part}-32", 1, **options)
        found["float32"][part] = relative(outputs(load(out, torch.float32), given), single_before)
    found["control"] = {
        what: relative(outputs(exact(load(folder)), given), before) for what, folder in shown
    }
    right = {"equivalent": 0, "not the same": 0}
    for seed in range(verdicts):
        orbit = moved(single, home / f"orbit-{seed}", 10 + seed)
        wrong = spoiled(orbit, home / f"wrong-{seed}", seed)
        with Checkpoint(single) as a, Checkpoint(orbit) as b, Checkpoint(wrong) as c:
            right["equivalent"] += same(a, b, search=False).answer.value == "equivalent"
            right["not the same"] += not same(a, c, search=False).answer.same_function
        if seed == 0:
            one, two = fingerprint(single), fingerprint(orbit)
            found["fingerprint"] = distance(one, two).largest
        for folder in (orbit, wrong):
            shutil.rmtree(folder)
    found["verdicts"] = right
    found["ok"] = within(found, verdicts)
    return found


def within(found: dict[str, Any], verdicts: int) -> bool:
    """Whether every target is met."""
    limits = [found[key] <= TARGETS[key] for key in ("exact", "plain", "fingerprint")]
    limits += [v <= TARGETS[key] for key in ("float64", "float32") for v in found[key].values()]
    limits += [change > TARGETS["control"] for change in found["control"].values()]
    limits += [count == verdicts for count in found["verdicts"].values()]
    return all(limits)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{', '.join(_QUICK)}, 2 verdicts")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--families", nargs="*", choices=list(ARCHITECTURES))
    parser.add_argument("--verdicts", type=int, default=20, help="of each kind and family")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = arguments.families or (_QUICK if arguments.quick else list(ARCHITECTURES))
    verdicts = 2 if arguments.quick else arguments.verdicts
    report: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            report[name] = found = check(name, Path(home), verdicts, not arguments.quick)
        parts, alone = found["float64"], found["float32"]
        print(
            f"{name:20} {'ok ' if found['ok'] else 'BAD'} function {found['exact']:.0e} "
            f"{found['plain']:.0e}; {len(parts)} parts {max(parts.values()):.0e} "
            f"{max(alone.values()):.0e}; controls "
            f"{', '.join(f'{what} {v:.0e}' for what, v in found['control'].items()) or 'none'}; "
            f"verdicts {found['verdicts']['equivalent']} {found['verdicts']['not the same']} of "
            f"{verdicts}; fingerprint {found['fingerprint']:.0e}",
            flush=True,
        )
    ok = all(found["ok"] for found in report.values())
    print(f"{sum(found['ok'] for found in report.values())} of {len(report)} meet every target")
    if arguments.json:
        figures = {"families": report, "patched": PATCHED, "targets": TARGETS, "ok": ok}
        print(json.dumps(figures))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
