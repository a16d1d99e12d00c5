"""Cohere's Command: a gated MLP beside the attention, pairs of neighbours turn, scaled logits."""

from dataclasses import replace

from torch import Tensor

from transformer_nfn.checkpoints.families.llamas.llama import (
    LLAMA,
    LLAMA_KEYS,
    MLP,
    readers_with,
    rotary_block,
)
from transformer_nfn.checkpoints.settings.keys import Biases, Joint, Key, padding
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block

_OTHERS = ("rms_norm_eps", "pretraining_tp", "tie_word_embeddings", "pad_token_id")
_LOGITS = 0.0625

_KEYS = replace(
    LLAMA_KEYS,
    classes="Cohere",
    fixed={"norm": "layer"},
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("layer_norm_eps", "eps", float, 1e-5),
        Key("tie_word_embeddings", "tied", bool, True),
        Key("logit_scale", "flags", float, _LOGITS),
        padding(0),
    ),
    joint=(
        Joint(
            ROPE,
            "rope",
            lambda config, _: read_rope(config, 8192, theta=500000.0, interleaved=True),
        ),
    ),
    supported={"use_qk_norm": False},
    biases=(LLAMA_KEYS.biases[0], Biases(MLP, there=False)),
    blocks=40,
    harmless=LLAMA_KEYS.harmless | {"pretraining_tp", "mlp_bias"},
)


def _block(settings: Settings) -> Block:
    return rotary_block(settings, parallel=True)


def _scaled(logits: Tensor, settings: Settings) -> Tensor:
    scale: float = settings.flag("logit_scale", _LOGITS)
    return logits * scale


COHERE = replace(
    LLAMA,
    name="cohere",
    keys={"cohere": _KEYS},
    block_of=_block,
    norms=("input_layernorm", "input_layernorm"),
    readers=readers_with(_scaled),
)
