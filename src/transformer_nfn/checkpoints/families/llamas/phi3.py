"""Phi-3 and Phi-4: Llama with its matrices fused, of whose coordinates not all may turn."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformer_nfn.checkpoints.families.llamas.llama import LLAMA, LLAMA_KEYS
from transformer_nfn.checkpoints.family import linear
from transformer_nfn.checkpoints.settings.keys import Biases, Joint, Key, padding
from transformer_nfn.checkpoints.settings.rotary import ROPE, one_window, read_rope
from transformer_nfn.space import Rope

_OTHERS = ("sliding_window", "pretraining_tp", "rms_norm_eps", "pad_token_id")
_BIASES = tuple(
    f"{name}_proj.bias" for name in ("self_attn.qkv", "self_attn.o", "mlp.gate_up", "mlp.down")
)


def _rope(config: Mapping[str, Any], _: int) -> Rope:
    # The first length is a setting of its own, which comes before that of the table.
    before = config.get("original_max_position_embeddings", 4096)
    tables = {}
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(table := config.get(name), dict):
            kept = {k: v for k, v in table.items() if k != "original_max_position_embeddings"}
            tables[name] = kept
    stated = {**config, **tables, "original_max_position_embeddings": before}
    return read_rope(stated, 4096, part=1.0, theta=10000.0)


_KEYS = replace(
    LLAMA_KEYS,
    classes="Phi3",
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("rms_norm_eps", "eps", float, 1e-5),
        padding(32000),
    ),
    joint=(
        Joint(ROPE, "rope", _rope),
        Joint(("sliding_window",), "windows", one_window(None)),
    ),
    biases=(Biases(_BIASES, there=False),),
    harmless=LLAMA_KEYS.harmless | {"attention_bias", "mlp_bias", "pretraining_tp"},
)

PHI3 = replace(
    LLAMA,
    name="phi3",
    keys={"phi3": _KEYS},
    probes=("layers.0.self_attn.qkv_proj.weight", "layers.0.mlp.gate_up_proj.weight"),
    matrices=(
        linear("self_attn.qkv_proj", "Q K V", "(g m k + g k + g v) x"),
        linear("self_attn.o_proj", "O", "x g m v", "bO"),
        linear("mlp.gate_up_proj", "gate up", "(a + a) x"),
        linear("mlp.down_proj", "down", "x a", "bdown"),
    ),
)
