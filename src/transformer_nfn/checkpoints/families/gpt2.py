"""GPT-2: Conv1D is [in, out], queries, keys and values fused in one matrix, pre-norm."""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.families.residual import declared
from transformer_nfn.checkpoints.family import (
    Family,
    Reader,
    Settings,
    Writer,
    linear,
    refuse,
    setting,
)


def _settings(config: Mapping[str, Any]) -> Settings:
    refuse(
        config,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    heads = setting(config, "n_head", int)
    return Settings(
        heads=heads,
        groups=heads,
        activation=setting(config, "activation_function", str, "gelu_new"),
        eps=setting(config, "layer_norm_epsilon", float, 1e-5),
        # Not a key of the format: files whose means were taken out of the weights and whose
        # LayerNorms then became RMSNorms, as rotating quantisers do, say so with --set norm=rms.
        norm=setting(config, "norm", str, "layer"),
        causal=True,
        tied=setting(config, "tie_word_embeddings", bool, True),
    )


GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    prefixes=("transformer.", ""),
    probe="h.0.attn.c_attn.weight",
    block="h.{}.",
    declared=declared,
    matrices=(
        linear("attn.c_attn", "Q K V", "x f h k"),
        linear("attn.c_proj", "O", "h v x", "bO"),
        linear("mlp.c_fc", "A", "x a", "bA"),
        linear("mlp.c_proj", "B", "a x", "bB"),
    ),
    norms=("ln_1", "ln_2"),
    settings=_settings,
    last_norm="ln_f",
    writers=(Writer("wte.weight", "t x"), Writer("wpe.weight", "t x")),
    readers=(Reader("lm_head", own=True, tied="wte.weight"), Reader("score", own=True)),
    ignored=(".attn.bias", ".attn.masked_bias"),
)
