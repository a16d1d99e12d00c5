"""GGUF files of every type that the package `gguf` writes, against what they were made of.

    python benchmarks/same/gguf_types.py MODEL.gguf ANOTHER/
    python benchmarks/same/gguf_types.py --quick --json

Each model, a GGUF file or a folder, is written as safetensors and as a GGUF file of each type. Each
file must be kin of its source, with float32 `same` must say that the function is the same, and the
outputs of Q8_0 must agree within a tolerance. What a fingerprint takes of safetensors and of GGUF
is measured in processes of their own. Nothing is kept.
"""

import argparse
import json
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from math import log
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.material.gguf_files import TYPES, source, write
from benchmarks.safety.hostile import memory
from transformer_nfn.checkpoints import Checkpoint, convert
from transformer_nfn.identity import same
from transformer_nfn.kinship import LEVEL, Relation, fingerprint, kin
from transformer_nfn.testing import assert_within

#: Of the outputs of Q8_0, relative to their size.
WITHIN = 0.05
QUICK_TYPES = ("F32", "F16", "Q4_0", "Q8_0", "MXFP4", "TQ2_0")


def check(folder: Path, work: Path, *, quick: bool) -> dict[str, Any]:
    """One model in all types.

    Args:
        folder: It, as safetensors.
        work: A folder for its GGUF files.
        quick: Whether only some types are made.
    """
    found: dict[str, Any] = {}
    for of in QUICK_TYPES if quick else TYPES:
        file = write(folder, work / f"{of}.gguf", of)
        with Checkpoint(folder) as ours, Checkpoint(file) as theirs:
            relation = kin(theirs, ours)
            said: dict[str, Any] = {
                "megabytes": round(file.stat().st_size / 1e6, 1),
                "kin": relation.relation.value,
                "log10_p": round(relation.log10_p, 1),
            }
            copy = relation.relation is Relation.COPY
            said["ok"] = copy or relation.log_p < log(LEVEL)
            if of == "F32":
                answer = same(ours, theirs).answer
                said["same"] = answer.value
                said["ok"] &= answer.same_function
            if of == "Q8_0":
                said["within"] = assert_within(ours, theirs, WITHIN, seed=0).largest
        if of in ("F16", "Q8_0"):
            said["fingerprint"] = costs(file, fork=quick)
        found[of] = said
        print(f"  {of}: {json.dumps(said)}", flush=True)
        file.unlink()
    found["safetensors"] = {"fingerprint": costs(folder, fork=quick), "ok": True}
    print(f"  safetensors: {json.dumps(found['safetensors'])}", flush=True)
    return found


def costs(path: Path, *, fork: bool) -> dict[str, float]:
    """Of a fingerprint, in a process that has done nothing before; a fork is sooner there."""
    with ProcessPoolExecutor(1, get_context("fork" if fork else "spawn")) as pool:
        return pool.submit(_cost, path).result()


def _cost(path: Path) -> dict[str, float]:
    torch.set_num_threads(1)
    before, begin = memory("VmHWM"), time.perf_counter()
    with Checkpoint(path) as checkpoint:
        fingerprint(checkpoint)
    seconds = time.perf_counter() - begin
    return {"seconds": round(seconds, 2), "megabytes": round(memory("VmHWM") - before)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path, help="GGUF files and folders")
    parser.add_argument("--quick", action="store_true", help="tiny models, fewer types")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if not arguments.models and not arguments.quick:
        parser.error("give models, or --quick")
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        models = list(arguments.models)
        if arguments.quick:
            models.append(source("gemma3_text", Path(home) / "gemma3"))
        for number, model in enumerate(models):
            print(model.name, flush=True)
            work = Path(home) / str(number)
            work.mkdir()
            folder = model if model.is_dir() else convert(model, work / "plain")
            figures[model.name] = check(folder, work, quick=arguments.quick)
    ok = all(said["ok"] for found in figures.values() for said in found.values())
    if arguments.json:
        print(json.dumps({"figures": figures, "targets": {"within": WITHIN}, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
