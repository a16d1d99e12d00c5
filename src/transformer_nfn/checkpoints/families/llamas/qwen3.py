"""Qwen3: Qwen2 without biases, whose queries and keys go through a norm."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llamas.gguf import QWEN3_GGUF
from transformer_nfn.checkpoints.families.llamas.llama import (
    LLAMA,
    LLAMA_KEYS,
    MLP,
    QWEN2_KEYS,
    rotary_block,
)
from transformer_nfn.checkpoints.family import Matrix
from transformer_nfn.checkpoints.settings.keys import Biases
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block

_KEYS = replace(
    QWEN2_KEYS, classes="Qwen3", biases=(LLAMA_KEYS.biases[0], Biases(MLP, there=False))
)


def _block(settings: Settings) -> Block:
    return rotary_block(settings, normed=True)


QWEN3 = replace(
    LLAMA,
    name="qwen3",
    keys={"qwen3": _KEYS},
    probes=(*LLAMA.probes, "layers.0.self_attn.q_norm.weight"),
    block_of=_block,
    matrices=(
        LLAMA.matrices[0],
        Matrix("self_attn.q_norm.weight", ("nQ",), "f j"),
        Matrix("self_attn.k_norm.weight", ("nK",), "f j"),
        *LLAMA.matrices[1:],
    ),
    gguf={"qwen3": QWEN3_GGUF},
)
