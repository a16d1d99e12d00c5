"""BERT: norms after each sum with the residual stream."""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.families.residual import declared, encoder_matrices
from transformer_nfn.checkpoints.family import (
    Family,
    Reader,
    Settings,
    Writer,
    refuse,
    setting,
)


def _settings(config: Mapping[str, Any]) -> Settings:
    refuse(config, position_embedding_type="absolute", add_cross_attention=False, is_decoder=False)
    heads = setting(config, "num_attention_heads", int)
    return Settings(
        heads=heads,
        groups=heads,
        activation=setting(config, "hidden_act", str, "gelu"),
        eps=setting(config, "layer_norm_eps", float, 1e-12),
        norm="layer",
        causal=False,
        tied=setting(config, "tie_word_embeddings", bool, True),
    )


BERT = Family(
    name="bert",
    model_types=("bert",),
    prefixes=("bert.", ""),
    probe="encoder.layer.0.attention.self.query.weight",
    block="encoder.layer.{}.",
    declared=declared,
    matrices=encoder_matrices("attention.self"),
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    settings=_settings,
    first_norm="embeddings.LayerNorm",
    post_norm=True,
    writers=(
        Writer("embeddings.word_embeddings.weight", "t x"),
        Writer("embeddings.position_embeddings.weight", "t x"),
        Writer("embeddings.token_type_embeddings.weight", "t x"),
    ),
    readers=(
        Reader("pooler.dense"),
        Reader("cls.predictions.transform.dense", own=True),
        Reader("qa_outputs", own=True),
    ),
    ignored=("embeddings.position_ids",),
)
