"""Llama, and Mistral and Qwen2, which are called the same: RoPE, grouped queries, a gated MLP."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from transformer_nfn.checkpoints.families.llamas.gguf import LLAMA_GGUF, QWEN2_GGUF
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import (
    ACTIVATIONS,
    Biases,
    Joint,
    Key,
    Keys,
    padding,
    usual_sizes,
)
from transformer_nfn.checkpoints.settings.rotary import (
    ROPE,
    WINDOWS,
    one_window,
    qwen2_windows,
    read_rope,
)
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import ROTARY, Attention, Block, GatedMlp, Half, Part, Words, compose

INPUTS = tuple(f"self_attn.{name}_proj.bias" for name in "qkv")
OUTPUT = ("self_attn.o_proj.bias",)
MLP = tuple(f"mlp.{name}_proj.bias" for name in ("gate", "up", "down"))


_MATTER = (
    Key("num_attention_heads", "heads", int),
    Key("hidden_act", "activation", str, "silu", same=ACTIVATIONS),
    Key("rms_norm_eps", "eps", float, 1e-6),
    Key("is_causal", "causal", bool, True),
    Key("tie_word_embeddings", "tied", bool, False),
    padding(None),
    # Read by relatives of these models; where a file has them it is not sure who does.
    Key("attn_logit_softcapping", "flags", float, None),
    Key("final_logit_softcapping", "flags", float, None),
    Key("query_pre_attn_scalar", "flags", float, None),
    Key("attention_chunk_size", "flags", int, None),
    Key("rope_interleaved", "flags", bool, False),
)

LLAMA_KEYS = Keys(
    fixed={"norm": "rms"},
    matter=(
        *_MATTER,
        Key("num_key_value_heads", "groups", int, None),
        # Slices of the matrices, which left out their biases.
        Key("pretraining_tp", "flags", int, 1, null=True),
        Key("sliding_window", "flags", int, None),
        Key("layer_types", "flags", list, None),
    ),
    joint=(Joint(ROPE, "rope", lambda config, _: read_rope(config, 2048)),),
    sizes=usual_sizes("embed_tokens.weight"),
    blocks=32,
    classes="Llama",
    biases=(
        Biases((*INPUTS, *OUTPUT), there=False, key="attention_bias"),
        Biases(MLP, there=False, key="mlp_bias"),
    ),
    # Nothing in a Llama looks at these; the first was of the context's length in early files.
    harmless=frozenset(
        (
            "max_sequence_length",
            "is_llama_config",
            "use_sliding_window",
            "max_window_layers",
            "add_cross_attention",
            "is_decoder",
        )
    ),
)
_MISTRAL_KEYS = replace(
    LLAMA_KEYS,
    classes="Mistral",
    matter=(
        *_MATTER,
        Key("num_key_value_heads", "groups", int, 8, null=True),
        Key("layer_types", "flags", list, None),
    ),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 131072)),
        Joint(("sliding_window",), "windows", one_window(4096)),
    ),
    biases=(Biases((*INPUTS, *OUTPUT, *MLP), there=False),),
    harmless=LLAMA_KEYS.harmless | {"attention_bias", "mlp_bias", "pretraining_tp"},
)
QWEN2_KEYS = replace(
    LLAMA_KEYS,
    classes="Qwen2",
    matter=(*_MATTER, Key("num_key_value_heads", "groups", int, 32, null=True)),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 32768)),
        Joint(WINDOWS, "windows", qwen2_windows),
    ),
    biases=(Biases(INPUTS, there=True), Biases((*OUTPUT, *MLP), there=False)),
    harmless=LLAMA_KEYS.harmless | {"attention_bias", "mlp_bias", "pretraining_tp"},
)


def rotary_attention(settings: Settings, **more: Any) -> Attention:
    """Attention in groups with rotary positions.

    Args:
        settings: Of a file.
        more: Further fields of it.
    """
    return Attention(
        grouped=True,
        rotary=True,
        rope=settings.rope,
        local_rope=settings.local_rope,
        causal=settings.causal,
        windows=settings.windows,
        turning=settings.turning,
        **more,
    )


def rotary_block(
    settings: Settings,
    *,
    mlp: Part | None = None,
    multiplier: float = 1.0,
    parallel: bool = False,
    raw: bool = False,
    **more: Any,
) -> Block:
    """Such attention, and a gated MLP.

    Args:
        settings: Of a file.
        mlp: What stands in the MLP's place.
        multiplier: Of what both write.
        parallel: Whether both read the stream as it was before the block.
        raw: Whether both read the stream as it is, without a norm.
        more: Further fields of the attention.
    """
    norms = {"after": more.get("after", False), "norm_eps": settings.eps}
    mlp = mlp or GatedMlp(settings.activation, bias_row=True, scales=True, **norms)
    parts = (rotary_attention(settings, norm_eps=settings.eps, **more), mlp)
    halves = (Half(part, settings.norm, multiplier=multiplier, raw=raw) for part in parts)
    return compose(ROTARY.name, *halves, parallel=parallel)


LLAMA = Family(
    name="llama",
    keys={"llama": LLAMA_KEYS, "mistral": _MISTRAL_KEYS, "qwen2": QWEN2_KEYS},
    prefixes=("model.", ""),
    probes=("layers.0.self_attn.q_proj.weight",),
    block="layers.{}.",
    block_of=rotary_block,
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
    norm_shifts=False,
    last_norm="norm",
    embeddings=(Words("embed_tokens.weight"),),
    readers=(
        Reader("lm_head", own=True, tied="embed_tokens.weight", bias=False),
        Reader("score", own=True, bias=("ForTokenClassification",)),
    ),
    ignored=("rotary_emb.inv_freq",),
    output_bias=False,
    gguf={"llama": LLAMA_GGUF, "qwen2": QWEN2_GGUF},
)


def readers_with(after: Callable[[Tensor, Settings], Tensor]) -> tuple[Reader, ...]:
    """Llama's readers, where something is made of the logits of words."""
    return tuple(replace(r, after=after) if r.tied else r for r in LLAMA.readers)
