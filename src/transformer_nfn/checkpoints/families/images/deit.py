"""DeiT: a ViT with a second token, which was taught by another network."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.images.vit import KEYS, VIT
from transformer_nfn.checkpoints.family import Reader
from transformer_nfn.space import ClassToken

_TAUGHT = "embeddings.distillation_token"

_PATCHES, _FIRST, _POSITIONS = VIT.embeddings

DEIT = replace(
    VIT,
    name="deit",
    keys={"deit": replace(KEYS, classes="DeiT")},
    prefixes=("deit.", ""),
    probes=(*VIT.probes, _TAUGHT),
    # Each token that is put before the others stands before those that were put there earlier.
    embeddings=(_PATCHES, ClassToken(_TAUGHT), _FIRST, _POSITIONS),
    readers=(
        *VIT.readers,
        Reader("cls_classifier", own=True, token=0),
        Reader("distillation_classifier", own=True, token=1),
    ),
)
