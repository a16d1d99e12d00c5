"""The image tower of SigLIP by itself: a ViT without a class token, under other names."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.residual import plain_block, projection_matrices
from transformer_nfn.checkpoints.families.vit import KEYS as VIT_KEYS
from transformer_nfn.checkpoints.family import Family
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key
from transformer_nfn.space import Patches, Positions

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
    biases=(),
)

#: Its head, attention from a learned query, reads the stream and is none of our parts: the basis of
#: the stream is held, and the head's tensors must agree as they are.
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
    ignored=("embeddings.position_ids",),
)
