"""Qwen3-MoE: Qwen3 with experts, in every block."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llamas.llama import rotary_block
from transformer_nfn.checkpoints.families.llamas.mixtral import expert_matrices
from transformer_nfn.checkpoints.families.llamas.qwen3 import QWEN3
from transformer_nfn.checkpoints.settings.keys import Joint, Key
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Experts

_QWEN3_KEYS = QWEN3.keys["qwen3"]
_KEYS = replace(
    _QWEN3_KEYS,
    classes="Qwen3Moe",
    matter=(
        *(key for key in _QWEN3_KEYS.matter if key.to != "groups"),
        Key("num_key_value_heads", "groups", int, 4, null=True),
        Key("num_experts_per_tok", "sizes.chosen", int, 8),
        Key("norm_topk_prob", "flags", bool, False),
        Key("layer_types", "flags", list, None),
    ),
    joint=(Joint(ROPE, "rope", lambda config, _: read_rope(config, 32768)),),
    # A block without experts has an MLP of another size, and a window is one of all blocks.
    supported={"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
    sizes={
        **{key: size for key, size in _QWEN3_KEYS.sizes.items() if key != "intermediate_size"},
        "moe_intermediate_size": "D_A",
        "num_experts": "experts",
        "num_local_experts": "experts",
    },
    biases=_QWEN3_KEYS.biases[:1],
    harmless=_QWEN3_KEYS.harmless
    | {
        "intermediate_size",
        "max_window_layers",
        "output_router_logits",
        "router_aux_loss_coef",
        "sliding_window",
    },
)


def _block(settings: Settings) -> Block:
    experts = Experts(
        settings.activation,
        chosen=settings.size("chosen"),
        renormalised=settings.flag("norm_topk_prob", False),
        scales=True,
    )
    return rotary_block(settings, mlp=experts, normed=True)


QWEN3_MOE = replace(
    QWEN3,
    name="qwen3-moe",
    keys={"qwen3_moe": _KEYS},
    probes=(*QWEN3.probes, "layers.0.mlp.gate.weight"),
    block_of=_block,
    matrices=(
        *QWEN3.matrices[:6],
        *expert_matrices("mlp.", "gate_proj", "up_proj", "down_proj"),
    ),
)
