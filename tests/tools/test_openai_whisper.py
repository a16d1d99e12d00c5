import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.material.families import make
from tools import openai_whisper
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import same

#: What each part is called in OpenAI's file, by its name in `transformers`.
_ATTENTION = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "out"}
_PARTS = {
    **{f"self_attn.{theirs}": f"attn.{ours}" for theirs, ours in _ATTENTION.items()},
    **{f"encoder_attn.{theirs}": f"cross_attn.{ours}" for theirs, ours in _ATTENTION.items()},
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "final_layer_norm": "mlp_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
}
_OUTSIDE = {
    "encoder.layer_norm": "encoder.ln_post",
    "decoder.layer_norm": "decoder.ln",
    "encoder.embed_positions.weight": "encoder.positional_embedding",
    "decoder.embed_positions.weight": "decoder.positional_embedding",
    "decoder.embed_tokens": "decoder.token_embedding",
}


def as_openai(name: str) -> str:
    name = name.removeprefix("model.")
    for theirs, ours in _OUTSIDE.items():
        if name == theirs or name.startswith(f"{theirs}."):
            return ours + name.removeprefix(theirs)
    if ".layers." not in name:
        return name
    network, _, number, rest = name.split(".", 3)
    part, _, kind = rest.rpartition(".")
    return f"{network}.blocks.{number}.{_PARTS[part]}.{kind}"


def test_a_file_of_openai_is_what_transformers_writes(tmp_path: Path) -> None:
    whole = make("whisper", tmp_path / "a", dtype=torch.float16)
    tensors = load_file(whole / "model.safetensors")
    config = json.loads((whole / "config.json").read_text())
    other = tmp_path / "b"
    other.mkdir()
    named = {as_openai(name): value for name, value in tensors.items() if "proj_out" not in name}
    save_file(named, other / "model.safetensors")
    sizes = {ours: config[theirs] for ours, theirs in openai_whisper._SIZES.items()}
    (other / "config.json").write_text(json.dumps(sizes))
    openai_whisper.convert(other, tmp_path / "c")
    assert load_file(tmp_path / "c" / "model.safetensors").keys() == tensors.keys()
    with Checkpoint(whole) as ours, Checkpoint(tmp_path / "c") as theirs:
        assert same(ours, theirs, seed=0).answer.same_function
