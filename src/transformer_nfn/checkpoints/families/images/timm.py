"""ViT as timm writes it: fused queries, keys and values, names of its own, no head count."""

from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Biases, Key, Keys
from transformer_nfn.space import ClassToken, Patches, PatchPositions

_PATCHES = "patch_embed.proj.weight"

_KEYS = Keys(
    fixed={"norm": "layer", "causal": False, "groups": None},
    matter=(
        Key("num_heads", "heads", int),
        Key("act_layer", "activation", str, "gelu", same=ACTIVATIONS),
        Key("norm_eps", "eps", float, 1e-6),
        Key("img_size", "sizes.image", int, 224),
        Key("patch_size", "sizes.patch", int, 16),
        Key("in_chans", "sizes.colours", int, 3),
        Key("architecture", "flags", str, None),
    ),
    # In timm's own config.json what was asked for beside the architecture stands in model_args.
    supported={
        **dict.fromkeys(("model_args", "fc_norm", "norm_layer", "init_values")),
        **dict.fromkeys(("qk_norm", "pre_norm", "no_embed_class"), False),
        **dict.fromkeys(("class_token", "final_norm"), True),
        **{"global_pool": "token", "reg_tokens": 0},
    },
    sizes={
        "embed_dim": "D",
        "num_features": "D",
        "depth": "blocks",
        "patch_size": (_PATCHES, 2),
        "in_chans": (_PATCHES, 1),
        "num_classes": ("head.weight", 0),
    },
    biases=(Biases(("attn.qkv.bias",), there=True, key="qkv_bias"),),
    harmless=frozenset(("label_names", "label_descriptions", "pretrained_cfg")),
)

TIMM_VIT = Family(
    name="timm-vit",
    keys={"timm-vit": _KEYS},
    prefixes=("",),
    probes=("blocks.0.attn.qkv.weight", _PATCHES, "cls_token"),
    block="blocks.{}.",
    block_of=plain_block,
    matrices=(
        linear("attn.qkv", "Q K V", "(h k + h k + h v) x"),
        linear("attn.proj", "O", "x h v", "bO"),
        linear("mlp.fc1", "A", "a x", "bA"),
        linear("mlp.fc2", "B", "x a", "bB"),
    ),
    norms=("norm1", "norm2"),
    last_norm="norm",
    embeddings=(
        Patches(_PATCHES, "patch_embed.proj.bias"),
        ClassToken("cls_token"),
        PatchPositions("pos_embed"),
    ),
    readers=(Reader("head", own=True, token=0),),
    # What is averaged, taught or put between is another function.
    refused=(
        *("attn_pool.", "dist_token", "fc_norm.", "head_dist."),
        *("norm_pre.", "patch_embed.norm.", "pre_logits.", "reg_token"),
    ),
)
