"""Phi-3 and Phi-4: Llama with its matrices fused, of whose coordinates not all may turn."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llama import LLAMA, LLAMA_KEYS
from transformer_nfn.checkpoints.family import linear
from transformer_nfn.checkpoints.settings.keys import Joint
from transformer_nfn.checkpoints.settings.rotary import ROPE, one_window, read_rope

_KEYS = replace(
    LLAMA_KEYS,
    classes="Phi3",
    matter=tuple(
        key for key in LLAMA_KEYS.matter if key.name not in ("sliding_window", "pretraining_tp")
    ),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 4096, part=1.0)),
        Joint(("sliding_window",), "windows", one_window(None)),
    ),
    biases=(),
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
