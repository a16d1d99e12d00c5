"""Mixtral: Mistral with experts."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llamas.llama import (
    INPUTS,
    LLAMA,
    OUTPUT,
    QWEN2_KEYS,
    rotary_block,
)
from transformer_nfn.checkpoints.family import Matrix
from transformer_nfn.checkpoints.settings.keys import Biases, Joint, Key
from transformer_nfn.checkpoints.settings.rotary import ROPE, one_window, read_rope
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Experts

_KEYS = replace(
    QWEN2_KEYS,
    classes="Mixtral",
    matter=(
        *(key for key in QWEN2_KEYS.matter if key.to not in ("groups", "eps")),
        Key("rms_norm_eps", "eps", float, 1e-5),
        Key("num_key_value_heads", "groups", int, 8, null=True),
        Key("num_experts_per_tok", "sizes.chosen", int, 2),
        Key("layer_types", "flags", list, None),
    ),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 131072)),
        Joint(("sliding_window",), "windows", one_window(None)),
    ),
    sizes={**QWEN2_KEYS.sizes, "num_local_experts": "experts"},
    biases=(Biases((*INPUTS, *OUTPUT), there=False),),
    harmless=QWEN2_KEYS.harmless
    | {"output_router_logits", "router_aux_loss_coef", "router_jitter_noise"},
)


def _block(settings: Settings) -> Block:
    experts = Experts(settings.activation, chosen=settings.size("chosen"), scales=True)
    return rotary_block(settings, mlp=experts)


def expert_matrices(stem: str, gate: str, up: str, down: str) -> tuple[Matrix, ...]:
    """A router, and of each expert three matrices, of which each network has names of its own."""
    each = f"{stem}experts.{{}}."
    return (
        Matrix(f"{stem}gate.weight", ("router",), "u x"),
        Matrix(f"{each}{gate}.weight", ("gate",), "u a x"),
        Matrix(f"{each}{up}.weight", ("up",), "u a x"),
        Matrix(f"{each}{down}.weight", ("down",), "u x a"),
    )


MIXTRAL = replace(
    LLAMA,
    name="mixtral",
    keys={"mixtral": _KEYS},
    probes=(*LLAMA.probes, "layers.0.block_sparse_moe.gate.weight"),
    block_of=_block,
    matrices=(*LLAMA.matrices[:4], *expert_matrices("block_sparse_moe.", "w1", "w3", "w2")),
)
