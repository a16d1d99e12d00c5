"""Granite: Llama with a multiplier for words, scores, what is written, and logits."""

from dataclasses import replace

from torch import Tensor

from transformer_nfn.checkpoints.families.llamas.llama import (
    LLAMA,
    LLAMA_KEYS,
    readers_with,
    rotary_block,
)
from transformer_nfn.checkpoints.settings.keys import Key
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Scaled, Words

_MULTIPLIERS = (
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
)

_KEYS = replace(
    LLAMA_KEYS,
    classes="Granite",
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name != "pretraining_tp"),
        *(Key(name, "flags", float, 1.0) for name in _MULTIPLIERS),
    ),
    harmless=LLAMA_KEYS.harmless | {"pretraining_tp"},
)


def _block(settings: Settings) -> Block:
    return rotary_block(
        settings,
        multiplier=settings.flag("residual_multiplier", 1.0),
        scale=settings.flag("attention_multiplier", 1.0),
    )


def _divided(logits: Tensor, settings: Settings) -> Tensor:
    scaling: float = settings.flag("logits_scaling", 1.0)
    return logits / scaling


GRANITE = replace(
    LLAMA,
    name="granite",
    keys={"granite": _KEYS},
    block_of=_block,
    embeddings=(Words("embed_tokens.weight"), Scaled("embedding_multiplier")),
    readers=readers_with(_divided),
)
