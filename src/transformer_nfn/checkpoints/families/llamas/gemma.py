"""Gemma 1, 2 and 3: Llama whose norms store their scale less 1, and whose words are scaled.

From the second on there are norms on both sides of each half; the second caps its scores and
logits, the third has norms of queries and keys.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families.llamas.gguf import GGUF_NORMS, LLAMA_GGUF, QWEN2_GGUF
from transformer_nfn.checkpoints.families.llamas.llama import (
    LLAMA,
    LLAMA_KEYS,
    MLP,
    readers_with,
    rotary_block,
)
from transformer_nfn.checkpoints.family import Matrix, Reader
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Biases, Joint, Key, padding
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope, typed_ropes, typed_windows
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Scaled, Words

#: The first files say gelu and mean the other one.
_GELU = {**ACTIVATIONS, "gelu": ACTIVATIONS["gelu_pytorch_tanh"]}
_OTHERS = (
    "hidden_act",
    "tie_word_embeddings",
    "num_key_value_heads",
    "pretraining_tp",
    "pad_token_id",
)

_KEYS = replace(
    LLAMA_KEYS,
    classes="Gemma",
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("hidden_act", "activation", str, "gelu_pytorch_tanh", same=_GELU),
        Key("hidden_activation", "flags", str, None, same=ACTIVATIONS),
        Key("tie_word_embeddings", "tied", bool, True),
        Key("num_key_value_heads", "groups", int, 16, null=True),
        padding(0),
    ),
    joint=(Joint(ROPE, "rope", lambda config, _: read_rope(config, 8192, theta=10000.0)),),
    supported={"use_bidirectional_attention": None},
    biases=(LLAMA_KEYS.biases[0], Biases(MLP, there=False)),
    blocks=28,
    harmless=LLAMA_KEYS.harmless | {"pretraining_tp", "mlp_bias"},
)

_GGUF = replace(QWEN2_GGUF, architecture="gemma", added=1.0)

_GGUF2 = replace(
    _GGUF,
    architecture="gemma2",
    tensors={
        **LLAMA_GGUF.tensors,
        "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
        "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
    },
    settings={
        **LLAMA_GGUF.settings,
        "sliding_window": "attention.sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        # Not said; llama.cpp takes the size of a head, but for the largest of them.
        "query_pre_attn_scalar": "attention.key_length",
    },
    # Without it llama.cpp runs another graph.
    needed=("attention.sliding_window",),
    largest=45,
)

_GGUF3 = replace(
    _GGUF2,
    architecture="gemma3",
    tensors={**_GGUF2.tensors, **GGUF_NORMS},
    largest=61,
)

GEMMA = replace(
    LLAMA,
    name="gemma",
    keys={"gemma": _KEYS},
    norm_offset=1.0,
    embeddings=(Words("embed_tokens.weight"), Scaled()),
    gguf={"gemma": _GGUF},
)

_SCALAR, _SCORES, _LOGITS = (
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
_WINDOWS = ("sliding_window", "layer_types")
_PATTERN, _LOCAL = "sliding_window_pattern", "rope_local_base_freq"
_BASES = ("rope_theta", 1e6), (_LOCAL, 1e4)
_REPLACED = (
    *(_SCALAR, _SCORES, _LOGITS, *_WINDOWS),
    *("hidden_act", "hidden_activation", "num_key_value_heads"),
)


def _keys(classes: str, softcaps: tuple[float | None, float | None], **more: Any) -> Any:
    return replace(
        _KEYS,
        classes=classes,
        matter=(
            *(key for key in _KEYS.matter if key.name not in _REPLACED),
            Key("hidden_activation", "activation", str, "gelu_pytorch_tanh", same=ACTIVATIONS),
            Key(_SCALAR, "flags", float, 256.0),
            *([Key(_SCORES, "flags", float, softcaps[0], null=True)] if softcaps[0] else []),
            Key("num_key_value_heads", "groups", int, 4, null=True),
            Key(_LOGITS, "flags", float, softcaps[1], null=True),
        ),
        # Read by others of them only.
        harmless=_KEYS.harmless | {"hidden_act", f"_{_PATTERN}", _SCORES},
        **more,
    )


def _normed_block(settings: Settings, softcap: float | None, *, normed: bool) -> Block:
    if not (scalar := settings.flag(_SCALAR, 256.0)) > 0:
        raise CheckpointError(f"{_SCALAR} is {scalar}, whose root scores are divided by")
    return rotary_block(
        settings,
        after=True,
        normed=normed,
        scale=scalar**-0.5,
        softcap=softcap and settings.flag(_SCORES, softcap),
    )


def _capped(default: float | None) -> tuple[Reader, ...]:
    def capped(logits: Tensor, settings: Settings) -> Tensor:
        cap = settings.flag(_LOGITS, default)
        return logits if cap is None else cap * torch.tanh(logits / cap)

    return readers_with(capped)


_AFTER = (
    Matrix("post_attention_layernorm.weight", ("nO",), "x", offset=1.0),
    Matrix("post_feedforward_layernorm.weight", ("ndown",), "x", offset=1.0),
)
_NORMS = ("input_layernorm", "pre_feedforward_layernorm")

GEMMA2 = replace(
    GEMMA,
    name="gemma2",
    keys={
        "gemma2": _keys(
            "Gemma2",
            (50.0, 30.0),
            joint=(*_KEYS.joint, Joint(_WINDOWS, "windows", typed_windows(4096, 2, None))),
            blocks=26,
        )
    },
    probes=(*GEMMA.probes, "layers.0.pre_feedforward_layernorm.weight"),
    block_of=lambda settings: _normed_block(settings, 50.0, normed=False),
    matrices=(*GEMMA.matrices[:-1], *_AFTER, GEMMA.matrices[-1]),
    norms=_NORMS,
    readers=_capped(30.0),
    gguf={"gemma2": _GGUF2},
)

GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    keys={
        "gemma3_text": _keys(
            "Gemma3",
            (None, None),
            joint=(
                *typed_ropes((*ROPE, _LOCAL), *_BASES, 131072, local_scaled=False),
                Joint((*_WINDOWS, _PATTERN), "windows", typed_windows(4096, 6, _PATTERN)),
            ),
            supported={"use_bidirectional_attention": False},
            blocks=26,
        )
    },
    probes=(*GEMMA2.probes, "layers.0.self_attn.q_norm.weight"),
    block_of=lambda settings: _normed_block(settings, None, normed=True),
    matrices=(
        GEMMA.matrices[0],
        Matrix("self_attn.q_norm.weight", ("nQ",), "f j", offset=1.0),
        Matrix("self_attn.k_norm.weight", ("nK",), "f j", offset=1.0),
        *GEMMA2.matrices[1:],
    ),
    readers=_capped(None),
    gguf={"gemma3_text": _GGUF3},
)
