"""Layers with a rank at the sizes of real transformers: memory and time.

One forward and backward pass of an encoder (equivariant layer 1 → 10 channels, ReLU, invariant
layer, its MLP) on one network, block by block with recomputation, one thread, each case in a fresh
process. Weights are random; only their sizes are those of GPT-2 small, MiniLM and SmolLM.

"peak" is VmHWM above the level after import and after the weights were made; at most 4 GB. Time is
in units of a plain read: the sum of all weights, from a memory-mapped safetensors file, timed in
turns with the step in the same process. "limit" is in the same unit what cannot be avoided: the
matrix products at the speed of a large one, and the bytes that must pass at the speed of the plain
read. With W bytes of weights, a share p of them in tensors with ReLU, and e = 10 channels, these
bytes are

    2 (W + 2 e W)        forward, twice: weights read, channels written, and read by the last layer
    + p e W              backward: masks of ReLU
    + 2 (1 - p) e W      backward: gradients of the other channels written and read
    + W                  backward: weights read

"kept" is the step where the allocator keeps what is freed (see "How a layer runs" in the
documentation); else the kernel clears each block's channels page by page.

    python benchmarks/lowrank.py
    python benchmarks/lowrank.py --quick --json
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.utils.flop_counter import FlopCounterMode

from transformer_nfn.models import Encoder
from transformer_nfn.space import BLOCKS, BlockSpec, WeightBatch

CHANNELS = 10
RANKS = (4, 8)
MOST_BYTES = 4e9
#: How many times the derived limit a step may take.
MOST_LIMITS = 4.0
CASES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "block": "residual",
        "sizes": {"D": 768, "heads": 12, "D_k": 64, "D_v": 64, "D_A": 3072},
        "blocks": 12,
    },
    "minilm": {
        "block": "residual",
        "sizes": {"D": 384, "heads": 12, "D_k": 32, "D_v": 32, "D_A": 1536},
        "blocks": 6,
    },
    "smollm": {
        "block": "grouped",
        "sizes": {"D": 576, "groups": 3, "heads_per_group": 3, "D_k": 64, "D_v": 64, "D_A": 1536},
        "blocks": 30,
    },
}
QUICK: dict[str, dict[str, Any]] = {
    "quick": {
        "block": "residual",
        "sizes": {"D": 128, "heads": 4, "D_k": 32, "D_v": 32, "D_A": 512},
        "blocks": 2,
    }
}
KEEP = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=8589934592"


def make_weights(case: dict[str, Any], path: Path) -> None:
    """Random weights of one network in a file."""
    spec = BlockSpec(BLOCKS[case["block"]], **case["sizes"])
    generator = torch.Generator().manual_seed(0)
    batch = WeightBatch.random(spec, networks=1, blocks=case["blocks"], generator=generator)
    save_file({name: batch[name] * 0.02 for name in batch}, path)


def plain_read(path: Path) -> float:
    """The sum of all weights in a memory-mapped file."""
    with safe_open(path, framework="pt") as file:
        return sum(file.get_tensor(name).sum().item() for name in file.keys())  # noqa: SIM118


def status(field: str) -> int:
    """A figure of this process in bytes, from /proc."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])


def seconds(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def matmul_rate() -> float:
    """Flops a second of a large matrix product."""
    a, b, out = (torch.rand(1024, 1024) for _ in range(3))
    times = [seconds(lambda: torch.mm(a, b, out=out)) for _ in range(12)]
    return 2 * 1024**3 / statistics.median(times[2:])


def measure(case: dict[str, Any], rank: int, path: Path, turns: int) -> dict[str, Any]:
    """Memory, then times, of one case; to be called in a process of its own."""
    torch.set_num_threads(1)
    spec = BlockSpec(BLOCKS[case["block"]], **case["sizes"])
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    batch = WeightBatch(spec, tensors)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    level = status("VmRSS")
    encoder = Encoder(
        spec,
        blocks=case["blocks"],
        channels=(CHANNELS,),
        rank=rank,
        generator=torch.Generator().manual_seed(0),
    )

    def step() -> None:
        encoder.zero_grad(set_to_none=True)
        encoder(batch).sum().backward()

    step()
    peak = status("VmHWM") - level

    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    plain_read(path)
    times: dict[str, list[float]] = {"read": [], "step": []}
    for _ in range(turns):
        times["read"] += [seconds(lambda: plain_read(path)) for _ in range(3)]
        times["step"].append(seconds(step))
    read, took = (statistics.median(times[name]) for name in ("read", "step"))

    weights = sum(tensor.numel() for tensor in tensors.values())
    share = sum(tensors[name].numel() for name in spec.block.pointwise) / weights
    passes = 2 * (1 + 2 * CHANNELS) + (2 - share) * CHANNELS + 1  # units of W, see above
    rate = matmul_rate()
    limit = passes + flops / rate / read
    return {
        "rank": rank,
        "weights": weights,
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "peak_bytes": peak,
        "channels_of_a_block_bytes": 4 * CHANNELS * weights // case["blocks"],
        "read_seconds": round(read, 5),
        "step_seconds": round(took, 4),
        "gflop": round(flops / 1e9, 2),
        "gflop_per_second": round(rate / 1e9, 1),
        "passes": round(passes, 1),
        "ratio": round(took / read, 1),
        "limit": round(limit, 1),
        "of_limit": round(took / read / limit, 2),
    }


def in_process(name: str, rank: int, path: Path, turns: int, keep: bool) -> dict[str, Any]:
    """`measure` in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if keep:
        environment["GLIBC_TUNABLES"] = KEEP
    command = [sys.executable, __file__, "--child", name, str(rank), str(path), str(turns)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}, rank {rank}, failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="D = 128 and two blocks, in 30 s")
    parser.add_argument("--case", choices=sorted(CASES), help="one of the sizes only")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, rank, path, turns = options.child
        case = {**CASES, **QUICK}[name]
        print(json.dumps(measure(case, int(rank), Path(path), int(turns))))
        return

    cases = QUICK if options.quick else CASES
    if options.case:
        cases = {options.case: CASES[options.case]}
    turns = 3
    figures = []
    print(
        "case     rank  parameters       peak      read      step   ratio   limit  of limit   kept"
    )
    for name, case in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            make_weights(case, path)
            for rank in RANKS:
                figure = {"case": name} | in_process(name, rank, path, turns, keep=False)
                kept = in_process(name, rank, path, turns, keep=True)
                figure["kept"] = {key: kept[key] for key in ("ratio", "limit", "peak_bytes")}
                figures.append(figure)
                print(
                    f"{name:8} {rank:4} {figure['parameters']:11,}"
                    f" {figure['peak_bytes'] / 1e6:7.0f} MB"
                    f" {1e3 * figure['read_seconds']:6.1f} ms {figure['step_seconds']:7.3f} s"
                    f" {figure['ratio']:7.0f} {figure['limit']:7.0f} {figure['of_limit']:9.2f}"
                    f" {kept['ratio']:6.0f}",
                    flush=True,
                )
    if options.json:
        # At D = 128 calls decide the time, so there only memory is judged.
        ok = all(f["peak_bytes"] <= MOST_BYTES for f in figures)
        ok &= options.quick or all(f["of_limit"] <= MOST_LIMITS for f in figures)
        targets = {"peak_bytes": MOST_BYTES, "of_limit": None if options.quick else MOST_LIMITS}
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        print(json.dumps({"figures": figures, "targets": targets, "versions": versions, "ok": ok}))


if __name__ == "__main__":
    main()
