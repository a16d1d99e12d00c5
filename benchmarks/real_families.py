"""Real trained networks of many architectures: read, moved by a symmetry, found equivalent.

    python benchmarks/real_families.py ../lineage/rxnfp-bert_ft ../lineage/antiberty:model_type=bert

Each folder, with settings of one's own after a colon, is opened, moved by a random element of all
parts of its group (condition 10 in float32, 2 in 16 bits), and both files are compared: `same` must
say equivalent. Where `transformers` can run the config, its outputs before and after are compared,
in float32. No weights are kept.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.families_material import quiet
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, parse_option
from transformer_nfn.identity import (
    apply_element,
    random_net_element,
    run,
    same,
    symmetry_parts,
)

_TOKENS = 32


@torch.no_grad()
def of_transformers(folder: Path, kind: str, ids: torch.Tensor) -> torch.Tensor:
    """What `transformers` makes of a folder in float32: logits, or hidden states."""
    with quiet():
        config = transformers.AutoConfig.from_pretrained(folder)
        name = (config.architectures or [kind])[0]
        cls = getattr(transformers, name, None) or getattr(transformers, kind)
        net = cls.from_pretrained(folder, dtype=torch.float32).eval()
        out = net(input_ids=ids)
    kinds = ("logits", "prediction_logits", "last_hidden_state")
    found: torch.Tensor = next(out[name] for name in kinds if name in out)
    return found.double()


def check(folder: Path, options: dict[str, Any], kind: str) -> dict[str, Any]:
    """One network."""
    begin = time.monotonic()
    work = Path(tempfile.mkdtemp())
    try:
        with Checkpoint(folder, options=options) as ours:
            coarse = torch.finfo(ours.dtype).eps > 1e-4
            element = random_net_element(
                ours, torch.Generator().manual_seed(1), condition=2.0 if coarse else 10.0
            )
            moved = apply_element(ours, element, work / "moved")
            with Checkpoint(moved, options=options) as theirs:
                verdict = same(ours, theirs, seed=0)
            words = ours.words or next(iter(ours.stored.files))
            rows = ours.files.entry(words).shape[0]
            ids = torch.randint(0, rows, (2, _TOKENS), generator=torch.Generator().manual_seed(0))
            found = {
                "family": ours.family.name,
                "parameters": sum(torch.Size(e.shape).numel() for e in ours.files.entries.values()),
                "dtype": str(ours.dtype).removeprefix("torch."),
                "parts": list(symmetry_parts(ours)),
                "answer": verdict.answer.value,
                "margin": verdict.margin,
                "outputs": verdict.agreement and verdict.agreement.ratio,
            }
            own = run(ours, ids)
        try:
            one, two = (of_transformers(f, kind, ids) for f in (folder, moved))
            found["transformers_moved"] = float((two - one).norm() / one.norm())
            fitting = [out for out in own.values() if out.numel() == one.numel()]
            found["transformers_ours"] = min(
                (float((o.reshape(one.shape) - one).norm() / one.norm()) for o in fitting),
                default=None,
            )
        except Exception as error:  # whatever keeps transformers from it
            found["transformers"] = f"{type(error).__name__}: {str(error)[:120]}"
        return found | {"seconds": round(time.monotonic() - begin)}
    finally:
        shutil.rmtree(work)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="+", help="FOLDER[:NAME=VALUE…][@CLASS]")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    report: dict[str, Any] = {}
    for text in arguments.folders:
        place, _, kind = text.partition("@")
        path, *settings = place.split(":")
        try:
            options = dict(parse_option(setting) for setting in settings)
            found = check(Path(path), options, kind)
        except CheckpointError as error:
            found = {"answer": "refused", "reason": str(error)[:200]}
        report[Path(path).name] = found
        print(f"{Path(path).name}: {json.dumps(found)}", flush=True)
    ok = all(found["answer"] == "equivalent" for found in report.values())
    if arguments.json:
        print(json.dumps({"figures": report, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
