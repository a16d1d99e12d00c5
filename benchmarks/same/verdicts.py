"""How often the verdict is right: equivalent pairs and near misses of all families, all parts.

    python benchmarks/same/verdicts.py --processes 2 --json
    python benchmarks/same/verdicts.py --quick --json

Equivalent pairs: a small checkpoint (written by `transformers`, or a zoo's net) and a random member
of its orbit, of all parts of its group or some of them, with condition numbers up to 1,000 in
float32 and up to 4 in bfloat16. Each must be found equivalent, and the certificate, written, read
and applied to the first file, must give the second. Near misses: a random member of the orbit with
one thing wrong. None may be called equivalent, and each must have a witness; except noise on every
weight, 0.5 % in bfloat16 and 1e-5 in float32, which may be left undecided: it is little more than
rounding.
"""

import argparse
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.material.spreading import spread_over
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.identity import (
    Answer,
    apply_element,
    changes,
    load_certificate,
    random_net_element,
    run,
    same,
    save_certificate,
    symmetry_parts,
    unit_roundoff,
)
from transformer_nfn.identity.running.inputs import draw_inputs
from transformer_nfn.kinship import Kinship, distance, fingerprint
from transformer_nfn.space import WeightBatch

FAMILIES = (*made.FAMILIES, "gpt2-relu", "zoo-paper", "zoo-residual", "zoo-text")
MISSES = ("vo", "neuron", "value bias", "blocks", "rope", "tuned", "noise")
BASES = 6  # different networks of each family and dtype


def base(home: Path, family: str, dtype: torch.dtype, seed: int) -> Path:
    """A network to start from, made once."""
    folder = home / f"{family}-{str(dtype).removeprefix('torch.')}-{seed}"
    if folder.exists():
        return folder
    if family.startswith("zoo"):
        block = "residual" if family == "zoo-residual" else "paper"
        made.zoo_net(folder / "model.safetensors", block, seed, text=family == "zoo-text")
        if dtype != torch.float32:
            from safetensors.torch import load_file, save_file

            file = folder / "model.safetensors"
            with Checkpoint(folder) as checkpoint:
                metadata = dict(checkpoint.files.shards[0][1].metadata)
            save_file({n: t.to(dtype) for n, t in load_file(file).items()}, file, metadata)
        return folder
    change = {"activation_function": "relu"} if family == "gpt2-relu" else {}
    return made.save(made.model(family.partition("-")[0], seed, **change), folder, dtype)


def tuned(folder: Path, out: Path, family: str, dtype: torch.dtype) -> Path:
    """The same network after a few real steps of training."""
    name = family.partition("-")[0]
    net = made.load(folder, torch.float32)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3 if dtype == torch.float32 else 1e-2)
    inputs = made.inputs(name, seed=1)
    for _ in range(4):
        loss = net(**inputs).logits.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made.save(net, out, dtype)


def draw(seed: int, miss: str | None) -> tuple[str, torch.dtype, float]:
    """Family, dtype and condition number of a case."""
    generator = torch.Generator().manual_seed(seed)
    allowed = [f for f in FAMILIES if miss is None or fits(f, miss)]
    family = allowed[seed % len(allowed)]
    dtype = (torch.float32, torch.bfloat16)[seed // len(allowed) % 2]
    top = 3.0 if dtype == torch.float32 else 0.602
    return family, dtype, float(10 ** (torch.rand((), generator=generator) * top))


def fits(family: str, miss: str) -> bool:
    if miss == "rope":
        return family in ("llama", "qwen2")
    if miss == "value bias":
        return family not in ("llama", "zoo-paper", "zoo-text")
    if miss == "tuned":
        return not family.startswith("zoo")
    return True


def moved(
    start: Path, out: Path, seed: int, condition: float, *, some: bool
) -> tuple[Path, list[str]]:
    """A random member of the orbit, by all parts or by some of them."""
    generator = torch.Generator().manual_seed(seed)
    with Checkpoint(start) as checkpoint:
        parts = list(symmetry_parts(checkpoint))
        if some:
            keep = torch.rand(len(parts), generator=generator) < 0.4
            keep[torch.randint(len(parts), (), generator=generator)] = True
            parts = [part for part, kept in zip(parts, keep, strict=True) if kept]
        element = random_net_element(checkpoint, generator, parts=parts, condition=condition)
        apply_element(checkpoint, element, out)
    return out, parts


def spoiled(start: Path, out: Path, miss: str, seed: int, dtype: torch.dtype) -> Path:
    """One thing wrong."""
    generator = torch.Generator().manual_seed(seed)
    with Checkpoint(start) as checkpoint:
        number = seed % checkpoint.blocks
        batch = checkpoint.block(number)
        if miss == "blocks":
            names = [n for n in checkpoint.files if n.startswith(checkpoint.block_name(0))]
            other = {
                n: checkpoint.block_name(1) + n.removeprefix(checkpoint.block_name(0))
                for n in names
            }
            pairs = [*other.items(), *((b, a) for a, b in other.items())]
            return rewrite(checkpoint, [(a, checkpoint.files.read(b)) for a, b in pairs], out)
        if miss == "noise":
            share = 1e-5 if dtype == torch.float32 else 0.005
            noisy = (
                (name, value * (1 + share * torch.randn(value.shape, generator=generator)))
                for name in checkpoint.files
                if (value := checkpoint.files.read(name).double()).is_floating_point()
            )
            return rewrite(checkpoint, noisy, out)
        if miss == "rope":
            out = rewrite(checkpoint, [], out)
            config = json.loads((out / "config.json").read_text())
            config["rope_parameters"]["rope_theta"] *= 1.2
            (out / "config.json").write_text(json.dumps(config))
            return out
        return rewrite(
            checkpoint, checkpoint.pack(number, edit(batch, miss, generator, dtype)).items(), out
        )


def edit(
    batch: WeightBatch, miss: str, generator: torch.Generator, dtype: torch.dtype
) -> WeightBatch:
    if miss == "vo":
        swap = torch.arange(batch["V"].shape[3])
        swap[:2] = torch.tensor([1, 0])
        return batch.replace({name: batch[name][:, :, :, swap] for name in ("V", "O")})
    if miss == "value bias":
        V = batch["V"].clone()
        V[..., -1, :] *= -1
        return batch.replace({"V": V})
    name = "gate" if "gate" in batch else "A"
    W = batch[name].clone()
    labels = [index.label for index in batch.spec.block.tensors[name]]
    neurons = 3 + labels.index("a")
    column = W.select(neurons, seed_index(W.shape[neurons], generator))[0, 0, 0]
    noise = torch.randn(column.shape, generator=generator, dtype=column.dtype)
    share = 0.01 if dtype == torch.float32 else 0.1
    column += noise * (share * column.norm() / noise.norm())
    return batch.replace({name: W})


def is_dead(before: Path, after: Path) -> bool:
    """Whether a change leaves all outputs on a hundred inputs as they are, to the last bit."""
    with Checkpoint(before) as a, Checkpoint(after) as b:
        inputs = draw_inputs(a, b, seed=0, count=100)
        one, two = run(a, inputs), run(b, inputs)
    return all(torch.equal(one[head], two[head]) for head in one)


def seed_index(size: int, generator: torch.Generator) -> int:
    return int(torch.randint(size, (), generator=generator))


def verified(ours: Path, theirs: Path, element: object, work: Path) -> float:
    """The largest relative error of what the stored certificate makes of the first file."""
    with Checkpoint(ours) as a, Checkpoint(theirs) as b:
        save_certificate(element, a, b, work / "certificate.safetensors")
        read, _ = load_certificate(work / "certificate.safetensors", a)
        worst = 0.0
        for name, value in changes(a, read):
            stored = b.files.read(name)
            error = (value.to(stored.dtype).double() - stored.double()).norm()
            worst = max(worst, (error / stored.double().norm().clamp_min(1e-12)).item())
        return worst / unit_roundoff(a, b)


def equivalent_case(home: Path, work: Path, seed: int) -> dict[str, object]:
    family, dtype, condition = draw(seed, None)
    start = base(home, family, dtype, seed // 2 % BASES)
    out, parts = moved(start, work / "b", seed, condition, some=seed % 3 > 0)
    with Checkpoint(start) as a, Checkpoint(out) as b:
        verdict = same(a, b)
    fine = verdict.answer.same_function
    error = verified(start, out, verdict.element, work) if verdict.element else 0.0
    # What storing rounds is 1; the element itself is known up to rounding times its condition.
    right = fine and error <= 8 + 2 * condition
    return {
        "kind": "equivalent", "family": family, "dtype": str(dtype), "ok": right,
        "answer": verdict.answer.value, "margin": verdict.margin or 0.0, "error": error,
        "seed": seed, "parts": parts, "reason": verdict.reason,
    }  # fmt: skip


def miss_case(home: Path, work: Path, seed: int) -> dict[str, object]:
    miss = MISSES[seed % len(MISSES)]
    seed //= len(MISSES)
    family, dtype, condition = draw(seed, miss)
    start = base(home, family, dtype, seed // 2 % BASES)
    changed = work / "changed"
    if miss == "tuned":
        tuned(start, changed, family, dtype)
        out, _ = moved(changed, work / "b", seed, min(condition, 10.0), some=True)
    else:
        moved(start, changed, seed, min(condition, 10.0), some=True)
        out = spoiled(changed, work / "b", miss, seed, dtype)
        while miss == "neuron" and is_dead(changed, out):
            # A neuron that no input reaches is no part of the function: that would be no miss.
            shutil.rmtree(out)
            seed += 1_000_003
            out = spoiled(changed, work / "b", miss, seed, dtype)
    with Checkpoint(start) as a, Checkpoint(out) as b:
        verdict = same(a, b)
    ratio = verdict.witness.strength if verdict.witness else 0.0
    right = verdict.answer is Answer.DIFFERENT and ratio > 0
    if miss == "noise":
        right = not verdict.answer.same_function
    return {
        "kind": miss, "family": family, "dtype": str(dtype), "seed": seed,
        "ok": right, "answer": verdict.answer.value,
        "ratio": ratio, "margin": verdict.margin or 0.0, "reason": verdict.reason,
    }  # fmt: skip


def work_on(job: tuple[str, str, int]) -> dict[str, object]:
    home, kind, seed = job
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(dir=home))
    try:
        case = equivalent_case if kind == "equivalent" else miss_case
        return case(Path(home) / f"bases-{multiprocessing.current_process().name}", work, seed)
    finally:
        shutil.rmtree(work)


def real_classes(real: Path, home: Path) -> dict[str, object]:
    """MiniLM against copies, a fine-tune and a stranger: the answer, and the fingerprint's."""
    from safetensors.torch import load_file, save_file

    start = real / "minilm"
    tensors = load_file(start / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    made_here = {
        "tensor copy": tensors,
        "stranger": {
            name: torch.randn(t.shape, generator=generator) * t.std()
            if t.is_floating_point()
            else t
            for name, t in tensors.items()
        },
    }
    files = {"byte copy": real / "copy", "fine-tune": real / "tuned"}
    for name, values in made_here.items():
        files[name] = home / name
        files[name].mkdir()
        save_file(values, files[name] / "model.safetensors", {"made": "by us"})
        shutil.copy(start / "config.json", files[name])
    files["reparametrised copy"], _ = moved(start, home / "moved", 0, 100.0, some=False)
    wanted = {
        "byte copy": (Answer.SAME_BYTES, Kinship.COPY),
        "tensor copy": (Answer.SAME_TENSORS, Kinship.COPY),
        "reparametrised copy": (Answer.EQUIVALENT, Kinship.COPY),
        "fine-tune": (Answer.DIFFERENT, Kinship.KIN),
        "stranger": (Answer.DIFFERENT, Kinship.STRANGER),
    }
    found: dict[str, object] = {}
    with Checkpoint(start) as ours:
        print_of_ours = fingerprint(ours)
        for name, (answer, kinship) in wanted.items():
            with Checkpoint(files[name]) as theirs:
                verdict, kin = same(ours, theirs), distance(print_of_ours, fingerprint(theirs))
            found[name] = {
                "answer": verdict.answer.value, "fingerprint": kin.kinship.value,
                "ok": (verdict.answer, kin.kinship) == (answer, kinship),
            }  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=2000, help="of each kind")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="10 of each kind")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--real", type=Path, help="a folder from tools/real_weights.py")
    arguments = parser.parse_args()
    pairs = 10 if arguments.quick else arguments.pairs
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        jobs = [(home, kind, seed) for seed in range(pairs) for kind in ("equivalent", "miss")]
        results = []
        with spread_over(arguments.processes) as many:
            for done, result in enumerate(many(work_on, jobs), 1):
                results.append(result)
                if not result["ok"]:
                    print(json.dumps(result), file=sys.stderr)
                if done % 200 == 0:
                    print(
                        f"{done}/{len(jobs)} after {time.monotonic() - start:.0f} s",
                        file=sys.stderr,
                    )
    report = summary(results)
    if arguments.real:
        with tempfile.TemporaryDirectory() as home:
            report["real"] = real_classes(arguments.real, Path(home))
        report["ok"] = report["ok"] and all(case["ok"] for case in report["real"].values())
    report["seconds"] = round(time.monotonic() - start)
    for name, value in report.items():
        print(f"{name}: {value}")
    if arguments.json:
        print(json.dumps(report))


def summary(results: list[dict[str, object]]) -> dict[str, object]:
    equal = [r for r in results if r["kind"] == "equivalent"]
    misses = [r for r in results if r["kind"] != "equivalent"]
    called = ("equivalent", "equivalent by products", "same tensors", "identical bytes")
    false = [r for r in misses if r["answer"] in called]
    return {
        "equivalent": len(equal),
        "equivalent_missed": sum(not r["ok"] for r in equal),
        "largest_margin": max(r["margin"] for r in equal),
        "largest_certificate_error_in_roundoffs": max(r["error"] for r in equal),
        "near_misses": len(misses),
        "called_equivalent": len(false),
        "without_witness": sum(not r["ok"] for r in misses) - len(false),
        "smallest_witness_strength": min(r["ratio"] for r in misses),
        "smallest_margin_of_a_miss": min(
            (r["margin"] for r in misses if r["kind"] != "rope"), default=0
        ),
        "by_kind": dict(Counter(f"{r['kind']}: {r['answer']}" for r in results)),
        "by_family": dict(Counter(str(r["family"]) for r in results)),
        "targets": {"equivalent_missed": 0, "called_equivalent": 0, "without_witness": 0},
        "ok": all(r["ok"] for r in results),
    }


if __name__ == "__main__":
    main()
