"""The image tower of SigLIP by itself: a ViT without a class token, under other names."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.checkpoints.families.images.vit import KEYS as VIT_KEYS
from transformer_nfn.checkpoints.families.residual import plain_block, projection_matrices
from transformer_nfn.checkpoints.family import Family, Summary
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Biases, Key
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import ACTIVATIONS as ACTIVATED
from transformer_nfn.space import Patches, Positions, layer_norm

PATCHES, PLACES = "embeddings.patch_embedding.weight", "embeddings.position_embedding.weight"
_OTHERS = ("hidden_act", "layer_norm_eps", "pooler_act", "encoder_stride")

KEYS = replace(
    VIT_KEYS,
    matter=(
        *(key for key in VIT_KEYS.matter if key.name not in _OTHERS),
        Key("hidden_act", "activation", str, "gelu_pytorch_tanh", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-6),
        Key("vision_use_head", "flags", bool, True),
    ),
    sizes={
        "hidden_size": "D",
        "intermediate_size": "D_A",
        "num_hidden_layers": "blocks",
        "patch_size": (PATCHES, 2),
        "num_channels": (PATCHES, 1),
    },
    classes="SiglipVision",
    # What is missing a loader draws at random here.
    biases=(Biases(("mlp.fc1.bias", "mlp.fc2.bias"), there=True),),
)

_HEAD = {
    "head.probe": "1 1 x",
    "head.attention.in_proj_weight": "3x x",
    "head.attention.in_proj_bias": "3x",
    "head.attention.out_proj.weight": "x x",
    "head.attention.out_proj.bias": "x",
    "head.layernorm.weight": "x",
    "head.layernorm.bias": "x",
    "head.mlp.fc1.weight": "a x",
    "head.mlp.fc1.bias": "a",
    "head.mlp.fc2.weight": "x a",
    "head.mlp.fc2.bias": "x",
}


def _pooled(hidden: Tensor, w: Mapping[str, Tensor], settings: Settings) -> Tensor:
    """Attention of a learned query to all tokens, and an MLP."""
    probe, wide, wide_bias, out, bias, scale, shift, up, up_bias, down, down_bias = (
        w[name] for name in _HEAD
    )
    tokens = hidden.transpose(0, 1)
    query = probe.expand(1, len(hidden), -1)
    found, _ = F.multi_head_attention_forward(
        query, tokens, tokens, len(scale), settings.heads, wide, wide_bias, None, None, False, 0.0,
        out, bias, training=False, need_weights=False,
    )  # fmt: skip
    read = layer_norm(found[0], settings.eps) * scale + shift
    return found[0] + ACTIVATED[settings.activation](read @ up.T + up_bias) @ down.T + down_bias


SIGLIP = Family(
    name="siglip_vision_model",
    keys={"siglip_vision_model": KEYS},
    prefixes=("vision_model.", ""),
    probes=("encoder.layers.0.self_attn.q_proj.weight", "embeddings.patch_embedding.bias"),
    block="encoder.layers.{}.",
    block_of=plain_block,
    matrices=projection_matrices("mlp."),
    norms=("layer_norm1", "layer_norm2"),
    last_norm="post_layernorm",
    embeddings=(Patches(PATCHES, "embeddings.patch_embedding.bias"), Positions(PLACES)),
    summaries=(Summary("pooler_output", _HEAD, _pooled),),
    ignored=("embeddings.position_ids",),
)
