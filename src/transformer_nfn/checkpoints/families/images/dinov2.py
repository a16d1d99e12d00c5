"""DINOv2: a ViT of which each coordinate of what is written has a scale."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from transformer_nfn.checkpoints.families.images.vit import KEYS as VIT_KEYS
from transformer_nfn.checkpoints.families.images.vit import VIT
from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Matrix, Summary, linear
from transformer_nfn.checkpoints.settings.keys import Key
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block

_OTHERS = ("layer_norm_eps", "pooler_act", "encoder_stride", "patch_size")
#: What is given of a backbone, which is another class; how scales began; what is drawn in training.
_HARMLESS = """
    _out_features _out_indices layerscale_value mlp_ratio
    out_features out_indices reshape_hidden_states stage_names
    use_mask_token
"""
_SIZES = ("hidden_size", "num_hidden_layers", "patch_size", "num_channels")

_KEYS = replace(
    VIT_KEYS,
    matter=(
        *(key for key in VIT_KEYS.matter if key.name not in _OTHERS),
        Key("layer_norm_eps", "eps", float, 1e-6),
        Key("patch_size", "sizes.patch", int, 14),
    ),
    supported={"use_swiglu_ffn": False, "apply_layernorm": True},
    sizes={key: VIT_KEYS.sizes[key] for key in _SIZES},
    classes="Dinov2",
    harmless=VIT_KEYS.harmless | set(_HARMLESS.split()),
)


def _block(settings: Settings) -> Block:
    return plain_block(settings, scaled=True)


_CLASSIFIER = {"classifier.weight": "o 2x", "classifier.bias": "o"}


def _labels(hidden: Tensor, w: Mapping[str, Tensor], _: Settings) -> Tensor:
    """Of the class token and the mean of all patches."""
    read = torch.cat([hidden[:, 0], hidden[:, 1:].mean(dim=1)], dim=-1)
    return read @ w["classifier.weight"].T + w["classifier.bias"]


DINOV2 = replace(
    VIT,
    name="dinov2",
    keys={"dinov2": _KEYS},
    prefixes=("dinov2.", ""),
    probes=(*VIT.probes, "encoder.layer.0.layer_scale1.lambda1"),
    block_of=_block,
    matrices=(
        *VIT.matrices[:-2],
        Matrix("layer_scale1.lambda1", ("nO",), "x"),
        Matrix("layer_scale2.lambda1", ("nB",), "x"),
        linear("mlp.fc1", "A", "a x", "bA"),
        linear("mlp.fc2", "B", "x a", "bB"),
    ),
    norms=("norm1", "norm2"),
    readers=(),
    poolers={},
    summaries=(Summary("classifier", _CLASSIFIER, _labels, own=True),),
    # In the place of patches that are hidden, which only training does.
    ignored=("embeddings.mask_token",),
)
