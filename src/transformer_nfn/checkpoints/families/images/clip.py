"""The image tower of CLIP by itself: SigLIP's with a class token and a norm before the blocks."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from transformer_nfn.checkpoints.families.images.siglip import KEYS, PATCHES, PLACES, SIGLIP
from transformer_nfn.checkpoints.family import Summary
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import ClassToken, Patches, Positions

_OTHERS = ("hidden_act", "layer_norm_eps", "patch_size", "vision_use_head")

_KEYS = replace(
    KEYS,
    matter=(
        *(key for key in KEYS.matter if key.name not in _OTHERS),
        Key("hidden_act", "activation", str, "quick_gelu", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-5),
        Key("patch_size", "sizes.patch", int, 32),
    ),
    classes="CLIPVision",
    # The size that another class projects its output to.
    harmless=KEYS.harmless | {"projection_dim"},
)

_PROJECTION = "visual_projection.weight"


def _projected(hidden: Tensor, w: Mapping[str, Tensor], _: Settings) -> Tensor:
    return hidden[:, 0] @ w[_PROJECTION].T


CLIP = replace(
    SIGLIP,
    name="clip_vision_model",
    keys={"clip_vision_model": _KEYS},
    probes=("encoder.layers.0.self_attn.q_proj.weight", "pre_layrnorm.weight"),
    first_norm="pre_layrnorm",
    embeddings=(
        Patches(PATCHES),
        ClassToken("embeddings.class_embedding", "x"),
        Positions(PLACES),
    ),
    # What is pooled goes through the last norm, hidden states do not.
    raw_hidden=True,
    summaries=(
        Summary("pooler_output", {}, lambda hidden, _, __: hidden[:, 0]),
        Summary("image_embeds", {_PROJECTION: "o x"}, _projected, own=True),
    ),
)
