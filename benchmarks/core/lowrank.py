"""Layers with a rank and for single heads at the sizes of real transformers; τ by rank on a zoo.

    python benchmarks/core/lowrank.py --real FOLDER --json
    python benchmarks/core/lowrank.py --zoo FOLDER --runs 150 --splits 2
    python benchmarks/core/lowrank.py --quick --json

One forward and backward pass of an encoder (equivariant layer 1 → 10 channels, ReLU, invariant
layer, its MLP) on one network, block by block with recomputation, one thread, each case in a fresh
process. The weights of BERT-base are random; those of MiniLM and SmolLM are too unless FOLDER has
the real ones, from `tools/real_weights.py`. `lowrank_sizes.py` says which of the symmetries that
we declare for them are not theirs.

"peak" is VmHWM above the level after import and after the weights were made; at most 4 GB. Time is
in units of a plain read: the sum of all weights, from a memory-mapped safetensors file, timed in
turns with the step in the same process. "forward" is without gradients, "step" forward and
backward. "limit" is in the same unit what a step cannot avoid: the matrix products at the speed of
a large one, and the bytes that must pass at the speed of the plain read. With W bytes of weights, a
share p of them in tensors with ReLU, and e = 10 channels, these bytes are

    2 (W + 2 e W)        forward, twice: weights read, channels written, and read by the last layer
    + p e W              backward: masks of ReLU
    + 2 (1 - p) e W      backward: gradients of the other channels written and read
    + W                  backward: weights read

"heads" is the head-aware layer. It makes no channels, so its bytes are 2 W, forward and again in
the backward pass; its products are in float64, and so is the large one that they are compared with.

"kept" is the step where the allocator keeps what is freed (see "How a layer runs" in the
documentation); else the kernel clears each block's channels page by page.

With a zoo, small nets of D = 32, Transformer-NFN is fitted without a rank and with several. On few
runs with a shared start that takes some minutes; --out keeps what is fitted, as `tnfn bench` does.
"""

import argparse
import ctypes
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
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.core.lowrank_sizes import (
    CASES,
    CHANNELS,
    MODELS,
    QUICK,
    count,
    read_weights,
    write_random,
)

MOST_BYTES = 4e9
#: How many times the derived limit a step may take.
MOST_LIMITS = 4.0
TURNS = 3
KEEP = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=8589934592"


def status(field: str) -> int:
    """A figure of this process in bytes, from /proc."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return 1024 * int(match[1])


def seconds(action: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def matmul_rate(dtype: torch.dtype) -> float:
    """Flops a second of a large matrix product."""
    a, b, out = (torch.rand(1024, 1024, dtype=dtype) for _ in range(3))
    times = [seconds(lambda: torch.mm(a, b, out=out)) for _ in range(12)]
    return 2 * 1024**3 / statistics.median(times[2:])


def measure(case_name: str, model_name: str, path: Path) -> dict[str, Any]:
    """Memory, then times, of one case; to be called in a process of its own."""
    torch.set_num_threads(1)
    case, kind = {**CASES, **QUICK}[case_name], MODELS[model_name]
    weights = read_weights(case, path)
    ctypes.CDLL(None).malloc_trim(0)  # what reading left behind is not below the peak
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again
    level = status("VmRSS")
    model = kind.make(case.spec, case.blocks)

    def forward() -> None:
        with torch.no_grad():
            model(weights.batch)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(weights.batch).sum().backward()

    step()
    peak = status("VmHWM") - level

    with FlopCounterMode(display=False) as counter:
        step()
    flops = counter.get_total_flops()
    weights.plain_read()
    times: dict[str, list[float]] = {"read": [], "forward": [], "step": []}
    for _ in range(TURNS):
        times["read"] += [seconds(weights.plain_read) for _ in range(3)]
        times["forward"].append(seconds(forward))
        times["step"].append(seconds(step))
    read, ahead, took = (statistics.median(values) for values in times.values())

    tensors = weights.batch.tensors
    number = count(tensors.values())
    share = count(tensors[name] for name in case.spec.block.pointwise) / number
    passes = kind.passes(share)
    rate = matmul_rate(kind.dtype)
    limit = passes + flops / rate / read
    return {
        "weights": number,
        "parameters": count(model.parameters()),
        "peak_bytes": peak,
        "channels_of_a_block_bytes": 4 * CHANNELS * number // case.blocks,
        "read_seconds": round(read, 5),
        "forward_seconds": round(ahead, 4),
        "step_seconds": round(took, 4),
        "gflop": round(flops / 1e9, 2),
        "gflop_per_second": round(rate / 1e9, 1),
        "passes": round(passes, 1),
        "forward_ratio": round(ahead / read, 1),
        "ratio": round(took / read, 1),
        "limit": round(limit, 1),
        "of_limit": round(took / read / limit, 2),
    }


def in_process(case: str, model: str, path: Path, keep: bool) -> dict[str, Any]:
    """`measure` in a process of its own: a fresh one, but for what is small and keeps nothing."""
    if case in QUICK and not keep:  # a fork need not import torch again, which takes longer
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            return pool.submit(measure, case, model, path).result()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if keep:
        environment["GLIBC_TUNABLES"] = KEEP
    command = [sys.executable, __file__, "--child", case, model, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case}, {model}, failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def at_size(name: str, real: Path | None) -> list[dict[str, Any]]:
    """All models at the size of one transformer; a line for each."""
    case = {**CASES, **QUICK}[name]
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        is_real = real is not None and case.real
        if real is not None and case.real:
            path = real / name
        else:
            write_random(case, path)
        for model in MODELS:
            figure = {"case": name, "real": is_real, "model": model}
            figure |= in_process(name, model, path, keep=False)
            # Of something small the allocator keeps all; one process more shows that it runs.
            keeps = name in CASES or model == "heads"
            kept = in_process(name, model, path, keep=True) if keeps else figure
            figure["kept"] = {key: kept[key] for key in ("ratio", "limit", "peak_bytes")}
            figures.append(figure)
            print(
                f"{name:9} {'real' if is_real else 'random':7} {model:8}"
                f" {figure['parameters']:11,} {figure['peak_bytes'] / 1e6:7.0f} MB"
                f" {1e3 * figure['read_seconds']:6.1f} ms {figure['forward_seconds']:7.3f} s"
                f" {figure['step_seconds']:7.3f} s {figure['forward_ratio']:8.0f}"
                f" {figure['ratio']:6.0f} {figure['limit']:6.0f} {figure['of_limit']:9.2f}"
                f" {kept['ratio']:5.0f}",
                flush=True,
            )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="D = 64 and two blocks, in 30 s")
    parser.add_argument("--case", choices=sorted(CASES), help="one of the sizes only")
    parser.add_argument("--real", type=Path, help="where `tools/real_weights.py` unpacked")
    parser.add_argument("--zoo", type=Path, help="only τ with several ranks, on this zoo")
    parser.add_argument("--runs", type=int, help="with --zoo: only the first N runs")
    parser.add_argument("--splits", type=int, default=2, help="with --zoo: how many of five")
    parser.add_argument("--out", type=Path, help="with --zoo: keep what is fitted in this folder")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        case, model, path = options.child
        print(json.dumps(measure(case, model, Path(path))))
        return
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    if options.zoo:
        from benchmarks.core.lowrank_zoo import ranks_on_zoo

        taus = ranks_on_zoo(options.zoo, options.runs, options.splits, options.out)
        if options.json:
            print(json.dumps({"ranks": taus, "versions": versions}))
        return

    print(
        "case      weights model     parameters       peak      read   forward      step"
        "  /read:fwd   step  limit  of limit  kept"
    )
    names = [options.case] if options.case else QUICK if options.quick else CASES
    figures = [figure for name in names for figure in at_size(name, options.real)]
    if options.json:
        # At D = 64 calls decide the time, so there only memory is judged.
        ok = all(f["peak_bytes"] <= MOST_BYTES for f in figures)
        ok &= options.quick or all(f["of_limit"] <= MOST_LIMITS for f in figures)
        targets = {"peak_bytes": MOST_BYTES, "of_limit": None if options.quick else MOST_LIMITS}
        print(json.dumps({"figures": figures, "targets": targets, "versions": versions, "ok": ok}))


if __name__ == "__main__":
    main()
