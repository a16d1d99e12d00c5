r"""Real trained networks of many architectures: read, moved by a symmetry, found equivalent.

    python benchmarks/same/real_families.py ../lineage/rxnfp-bert_ft ../lineage/iglm-IgLM

Each folder, with settings of one's own after a colon, is opened, moved by a random element of all
parts of its group (condition 10 in float32, 2 in 16 bits), and both files are compared: `same` must
say equivalent. Where `transformers` can run the config, its outputs before and after are compared,
in float32; of PyTorch's own encoder those of that. No weights are kept.

    python benchmarks/same/real_families.py ../lineage/all-mpnet-base-v2@MPNetModel
    python benchmarks/same/real_families.py ../lineage/tabpfn:model_type=torch-encoder:nhead=4:\
activation=gelu

A table of one's own, for a network that has tensors which no family knows:

    python benchmarks/same/real_families.py \
        ../lineage/antiberty:family=benchmarks/material/antiberty.py
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

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.material.families import quiet
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, load_family, parse_option
from transformer_nfn.identity import (
    apply_element,
    random_net_element,
    run,
    same,
    symmetry_parts,
)
from transformer_nfn.identity.running.inputs import NetInputs, SourceAndTarget, draw_inputs
from transformer_nfn.space import Inputs
from transformer_nfn.space.parts.embedding import token_ids

_TOKENS = 32


@torch.no_grad()
def of_transformers(folder: Path, kind: str, inputs: NetInputs) -> torch.Tensor:
    """What `transformers` makes of a folder in float32: logits, or hidden states."""
    with quiet():
        config = transformers.AutoConfig.from_pretrained(folder)
        name = kind or config.architectures[0]
        net = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
        given = {"input_ids": inputs}
        if isinstance(inputs, SourceAndTarget):
            sound = inputs.source.is_floating_point()
            source = "input_features" if sound else "input_ids"
            given = {source: inputs.source, "decoder_input_ids": inputs.target}
        out = net(**given)
    kinds = ("logits", "prediction_logits", "last_hidden_state")
    found: torch.Tensor = next(out[name] for name in kinds if name in out)
    return found.double()


@torch.no_grad()
def of_torch(folder: Path, options: dict[str, Any], vectors: torch.Tensor) -> torch.Tensor:
    """What PyTorch's own encoder makes of a folder in float32."""
    with Checkpoint(folder, options=options) as checkpoint:
        state = {
            name.removeprefix(checkpoint.prefix): checkpoint.files.read(name)
            for name in checkpoint.files
            if name.startswith(f"{checkpoint.prefix}layers.")
        }
        layer = torch.nn.TransformerEncoderLayer(
            checkpoint.D,
            checkpoint.settings.heads,
            checkpoint.spec.sizes["D_A"],
            activation=checkpoint.settings.activation,
            batch_first=True,
        )
        blocks = checkpoint.blocks
    net = torch.nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False).eval()
    net.load_state_dict(state)
    found: torch.Tensor = net(vectors.float())
    return found.double()


def check(folder: Path, options: dict[str, Any], kind: str) -> dict[str, Any]:
    """One network."""
    path = options.pop("family", None)
    family = load_family(path) if path else None
    begin = time.monotonic()
    work = Path(tempfile.mkdtemp())
    try:
        with Checkpoint(folder, options=options, family=family) as ours:
            coarse = torch.finfo(ours.dtype).eps > 1e-4
            element = random_net_element(
                ours, torch.Generator().manual_seed(1), condition=2.0 if coarse else 10.0
            )
            moved = apply_element(ours, element, work / "moved")
            with Checkpoint(moved, options=options, family=family) as theirs:
                verdict = same(ours, theirs, seed=0)
            inputs = draw_inputs(ours, ours, seed=0, count=2, length=_TOKENS)
            if isinstance(inputs, torch.Tensor) and ours.family.inputs is Inputs.WORDS:
                inputs = token_ids(inputs)  # without types
            found = {
                "family": ours.family.name,
                "parameters": sum(torch.Size(e.shape).numel() for e in ours.files.entries.values()),
                "dtype": str(ours.dtype).removeprefix("torch."),
                "parts": list(symmetry_parts(ours)),
                "answer": verdict.answer.value,
                "margin": verdict.margin,
                "outputs": verdict.agreement and verdict.agreement.ratio,
            }
            own = run(ours, inputs)
            encoder = ours.family.name.startswith("torch-encoder")
        try:
            if encoder:
                one, two = (of_torch(f, options, inputs) for f in (folder, moved))
            else:
                one, two = (of_transformers(f, kind, inputs) for f in (folder, moved))
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
