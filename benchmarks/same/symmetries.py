"""Every part of every family's group, shown by running the models of `transformers`.

    python benchmarks/same/symmetries.py --real ../real
    python benchmarks/same/symmetries.py --quick --json

For each family, small ones and with `--real` MiniLM (BERT) and SmolLM2 (Llama), each part of the
group alone and all together: the logits of the model after a random element of condition number 10
against those before, in float32 and float64. Elements of the paper's group that are no symmetries
there must change them: π_O of one block under skip connections, GL under RoPE. `transformers`
computes RMSNorm in float32 whatever the dtype; it is replaced, or the float64 figures were empty.
`python tools/real_weights.py ../real` unpacks the real files.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, rewrite
from transformer_nfn.group import conditioned, relative_error
from transformer_nfn.identity import apply_element, random_net_element, symmetry_parts

LIMITS = {torch.float32: 1e-4, torch.float64: 1e-10}
REAL = {"minilm": "bert", "smollm": "llama"}


def exact_norms() -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm

    def forward(self: LlamaRMSNorm, x: Tensor) -> Tensor:
        return self.weight * (
            x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        )

    LlamaRMSNorm.forward = Qwen2RMSNorm.forward = forward


@torch.no_grad()
def outputs(folder: Path, family: str, dtype: torch.dtype) -> Tensor:
    """Logits, or hidden states where there is no head."""
    net = made.load(folder, dtype)
    return made.logits(net, family)


def widened(folder: Path, out: Path) -> Path:
    """The same checkpoint with all numbers in float64."""
    from safetensors.torch import load_file, save_file

    out.mkdir()
    tensors = load_file(folder / "model.safetensors")
    save_file({n: t.double() if t.is_floating_point() else t for n, t in tensors.items()},
              out / "model.safetensors", {"format": "pt"})  # fmt: skip
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    return out


def not_symmetric(checkpoint: Checkpoint) -> tuple[str, dict[str, Tensor]]:
    """An element of the paper's group for block 0 that is no symmetry of this family."""
    generator = torch.Generator().manual_seed(0)
    batch = checkpoint.block(0)
    if checkpoint.settings.rope is None:
        order = torch.randperm(checkpoint.D, generator=generator)
        moved = {"O": batch["O"][..., order], "bO": batch["bO"][..., order]}
        A = batch["A"].index_select(3, order)
        return "pi_O", checkpoint.pack(0, batch.replace({**moved, "A": A}))
    M = conditioned(10.0)((checkpoint.settings.groups,), checkpoint.spec.sizes["D_k"], generator)
    Q = torch.einsum("nclgmzk,gkj->nclgmzj", batch["Q"], M)
    K = torch.einsum("nclgzk,gjk->nclgzj", batch["K"], torch.linalg.inv(M))
    return "GL under RoPE", checkpoint.pack(0, batch.replace({"Q": Q, "K": K}))


def measure(
    name: str, folder: Path, family: str, dtype: torch.dtype, home: Path
) -> dict[str, float]:
    before = outputs(folder, family, dtype)
    found = {}
    with Checkpoint(folder) as checkpoint:
        for part in (*symmetry_parts(checkpoint), "all"):
            generator = torch.Generator().manual_seed(1)
            element = random_net_element(
                checkpoint, generator, parts=None if part == "all" else [part]
            )
            out = apply_element(checkpoint, element, home / f"{name}-{part}-{dtype}")
            found[part] = relative_error(outputs(out, family, dtype), before)
            remove(out)
        control, changes = not_symmetric(checkpoint)
        out = rewrite(checkpoint, changes.items(), home / f"{name}-control-{dtype}")
        found[control] = relative_error(outputs(out, family, dtype), before)
        remove(out)
    return found


def remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--real", type=Path, default=os.environ.get("TNFN_REAL"))
    parser.add_argument("--quick", action="store_true", help="small models only")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    exact_norms()
    logging.disable(logging.WARNING)
    report: dict[str, dict[str, float]] = {}
    ok = True
    skipped = []
    with tempfile.TemporaryDirectory() as temporary:
        home = Path(temporary)
        cases = [(f, made.save(made.model(f), home / f, torch.float64), f) for f in made.FAMILIES]
        if arguments.real and not arguments.quick:
            for name, family in REAL.items():
                cases.append((name, widened(Path(arguments.real) / name, home / name), family))
        else:
            skipped = list(REAL)
        for name, folder, family in cases:
            for dtype, limit in LIMITS.items():
                start = folder
                if dtype == torch.float32:
                    start = made.save(made.load(folder, dtype), home / f"{name}-32", dtype)
                found = measure(name, start, family, dtype, home)
                key = f"{name} {str(dtype).removeprefix('torch.')}"
                report[key] = {part: float(f"{value:.3g}") for part, value in found.items()}
                *symmetric, control = found.values()
                ok &= max(symmetric) < limit and control > 1e-3
                print(f"{key:<18}", "  ".join(f"{p} {v:.1e}" for p, v in found.items()), flush=True)
    if skipped:
        print(f"skipped, no --real FOLDER: {', '.join(skipped)}")
    if arguments.json:
        targets = {"float32": 1e-4, "float64": 1e-10, "controls": "above 1e-3"}
        print(json.dumps({"figures": report, "skipped": skipped, "targets": targets, "ok": ok}))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
