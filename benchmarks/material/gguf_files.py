"""Small GGUF files made of checkpoints, with the names that the package gguf has for tensors."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.material.families import make
from transformer_nfn.checkpoints.families import FAMILIES

#: model_types that are read from GGUF, and what llama.cpp calls them.
KINDS = {
    kind: table.architecture
    for family in FAMILIES.values()
    for kind, table in family.gguf.items()
    if kind in family.keys
}
Type = gguf.GGMLQuantizationType
#: Those that the package can make.
TYPES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"),
    *("TQ1_0", "TQ2_0"),  # of 256 numbers in a block, the others of 32 or 1
)
_SETTINGS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def source(kind: str, folder: Path, **changes: Any) -> Path:
    """A checkpoint of `transformers` that llama.cpp could have been given."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    if kind == "llama":
        sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e5}
    if kind == "qwen2":
        del sizes["head_dim"]  # it has no such key
    if kind in ("gemma2", "gemma3_text"):
        sizes["query_pre_attn_scalar"] = 8
    if kind == "gemma3_text":
        sizes["layer_types"] = ["sliding_attention"] * 2
    return make(kind, folder, dtype=torch.float32, **{**sizes, **changes})


def write(folder: Path, out: Path, of: str = "F32", **settings: Any) -> Path:
    """A GGUF file of a checkpoint, as llama.cpp's converter makes it.

    Args:
        folder: The checkpoint.
        out: The file.
        of: The type of its matrices; all else is F32, and what its blocks do not fit F16.
        settings: That are written beside, or None for those that are left out.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = KINDS[config["model_type"]]
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_array("tokenizer.ggml.tokens", ["a", "of", "the"] * 20)
    for key, name in _SETTINGS.items():
        value = config.get(key)
        if value is not None and name not in settings:
            add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            add(f"{architecture}.{name}", value)
    rope = config.get("rope_parameters", {})
    theta = rope.get("rope_theta", rope.get("full_attention", {}).get("rope_theta"))
    theta = config.get("rope_theta", theta)
    writer.add_float32(f"{architecture}.rope.freq_base", theta)
    for name, value in settings.items():
        if value is not None:
            (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        stem, _, end = name.rpartition(".")
        layer = stem.rpartition(".")[2]
        if architecture == "llama" and layer in heads:  # the halves of a pair side by side
            count = config[heads[layer]]
            parts = values.reshape(count, 2, -1, *values.shape[1:]).swapaxes(1, 2)
            values = np.ascontiguousarray(parts.reshape(values.shape))
        if architecture.startswith("gemma") and stem.endswith("norm"):
            values = values + np.float32(1)
        type_ = Type[of] if values.ndim > 1 else Type.F32
        if values.shape[-1] % gguf.GGML_QUANT_SIZES[type_][0]:
            type_ = Type.F16
        stored = gguf.quantize(values, type_)
        writer.add_tensor(f"{names.get_name(stem)}.{end}", stored, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
