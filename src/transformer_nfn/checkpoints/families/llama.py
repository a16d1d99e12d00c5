"""Llama, and Mistral and Qwen2, which are called the same: RoPE, grouped queries, a gated MLP."""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.family import (
    Family,
    Reader,
    Rope,
    Settings,
    Writer,
    as_float,
    linear,
    setting,
)
from transformer_nfn.space import ROTARY


def _rope(config: Mapping[str, Any]) -> Rope:
    """`transformers` 5 writes rope_parameters, earlier ones rope_theta and rope_scaling."""
    table = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(table, dict):
        raise CheckpointError(f"rope_parameters should be a table, not {table!r:.60}")
    theta = table.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise CheckpointError("rope_theta is not known; give config.json or --set rope_theta=…")
    kind = table.get("rope_type", table.get("type", "default"))
    options = {
        name: value
        for name, value in table.items()
        if name not in ("rope_theta", "rope_type", "type")
    }
    if not isinstance(kind, str) or not all(
        type(v) in (int, float) for v in (*options.values(), theta)
    ):
        raise CheckpointError(f"rope_parameters {table!r:.100} are not a type and numbers")
    numbers = tuple(sorted((n, as_float(v, f"{n!r:.60}")) for n, v in options.items()))
    return Rope(as_float(theta, "rope_theta"), kind, numbers)


def _settings(config: Mapping[str, Any]) -> Settings:
    heads = setting(config, "num_attention_heads", int)
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return Settings(
        heads=heads,
        groups=setting(config, "num_key_value_heads", int, heads),
        activation=setting(config, "hidden_act", str, "silu"),
        eps=setting(config, "rms_norm_eps", float, 1e-6),
        norm="rms",
        causal=True,
        tied=setting(config, "tie_word_embeddings", bool, False),
        rope=_rope(config),
        flags=(("sliding_window", window),),
    )


LLAMA = Family(
    name="llama",
    model_types=("llama", "mistral", "qwen2"),
    prefixes=("model.", ""),
    probe="layers.0.self_attn.q_proj.weight",
    block="layers.{}.",
    declared=lambda _: ROTARY,
    matrices=(
        linear("self_attn.q_proj", "Q", "g m k x"),
        linear("self_attn.k_proj", "K", "g k x"),
        linear("self_attn.v_proj", "V", "g v x"),
        linear("self_attn.o_proj", "O", "x g m v", "bO"),
        linear("mlp.gate_proj", "gate", "a x"),
        linear("mlp.up_proj", "up", "a x"),
        linear("mlp.down_proj", "down", "x a", "bdown"),
    ),
    norms=("input_layernorm", "post_attention_layernorm"),
    settings=_settings,
    last_norm="norm",
    writers=(Writer("embed_tokens.weight", "t x"),),
    readers=(
        Reader("lm_head", own=True, tied="embed_tokens.weight"),
        Reader("score", own=True),
    ),
    ignored=("rotary_emb.inv_freq",),
    output_bias=False,
)
