"""ViT: patches of an image, a class token, pre-norm."""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.families.residual import declared, encoder_matrices
from transformer_nfn.checkpoints.family import Family, Reader, Settings, Writer, setting


def _settings(config: Mapping[str, Any]) -> Settings:
    heads = setting(config, "num_attention_heads", int)
    return Settings(
        heads=heads,
        groups=heads,
        activation=setting(config, "hidden_act", str, "gelu"),
        eps=setting(config, "layer_norm_eps", float, 1e-12),
        norm="layer",
        causal=False,
        sizes=(
            ("image", setting(config, "image_size", int, 224)),
            ("patch", setting(config, "patch_size", int, 16)),
            ("colours", setting(config, "num_channels", int, 3)),
        ),
    )


VIT = Family(
    name="vit",
    model_types=("vit",),
    prefixes=("vit.", ""),
    probe="encoder.layer.0.attention.attention.query.weight",
    block="encoder.layer.{}.",
    declared=declared,
    matrices=encoder_matrices("attention.attention"),
    norms=("layernorm_before", "layernorm_after"),
    settings=_settings,
    last_norm="layernorm",
    writers=(
        Writer("embeddings.patch_embeddings.projection.weight", "x p q r"),
        Writer("embeddings.patch_embeddings.projection.bias", "x"),
        Writer("embeddings.cls_token", "p q x"),
        Writer("embeddings.position_embeddings", "p q x"),
    ),
    readers=(Reader("pooler.dense"), Reader("classifier", own=True)),
)
