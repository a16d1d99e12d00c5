"""ViT: patches of an image, a class token, pre-norm."""

from transformer_nfn.checkpoints.families.residual import encoder_matrices, plain_block
from transformer_nfn.checkpoints.family import Family, Reader
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Biases, Key, Keys
from transformer_nfn.space import ClassToken, Patches, PatchPositions

_PATCHES = "embeddings.patch_embeddings.projection.weight"

KEYS = Keys(
    fixed={"norm": "layer", "causal": False, "groups": None},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("hidden_act", "activation", str, "gelu", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-12),
        Key("image_size", "sizes.image", int, 224),
        Key("patch_size", "sizes.patch", int, 16),
        Key("num_channels", "sizes.colours", int, 3),
        Key("pooler_act", "flags", str, "tanh", same=ACTIVATIONS),
        Key("encoder_stride", "flags", int, 16, beside="decoder."),
    ),
    sizes={
        "hidden_size": "D",
        "intermediate_size": "D_A",
        "num_hidden_layers": "blocks",
        "patch_size": (_PATCHES, 2),
        "num_channels": (_PATCHES, 1),
        "pooler_output_size": ("pooler.dense.weight", 0),
    },
    blocks=12,
    classes="ViT",
    refused=("ForMaskedImageModeling",),
    biases=(
        Biases(
            tuple(f"attention.attention.{name}.bias" for name in ("query", "key", "value")),
            there=True,
            key="qkv_bias",
        ),
    ),
    harmless=frozenset(
        ["add_cross_attention", "is_decoder", "pad_token_id", "tie_word_embeddings"]
    ),
)

VIT = Family(
    name="vit",
    keys={"vit": KEYS},
    prefixes=("vit.", ""),
    probes=("encoder.layer.0.attention.attention.query.weight",),
    block="encoder.layer.{}.",
    block_of=plain_block,
    matrices=encoder_matrices("attention.attention"),
    norms=("layernorm_before", "layernorm_after"),
    last_norm="layernorm",
    embeddings=(
        Patches(_PATCHES, "embeddings.patch_embeddings.projection.bias"),
        ClassToken("embeddings.cls_token"),
        PatchPositions("embeddings.position_embeddings"),
    ),
    readers=(
        Reader("pooler.dense", token=0),
        Reader("classifier", own=True, token=0),
    ),
    poolers={"pooler.dense": "tanh"},
)
