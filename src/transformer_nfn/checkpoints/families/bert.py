"""BERT: norms after each sum with the residual stream."""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.families.residual import declared
from transformer_nfn.checkpoints.family import (
    Family,
    Reader,
    Settings,
    Writer,
    linear,
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
    matrices=(
        linear("attention.self.query", "Q", "h k x"),
        linear("attention.self.key", "K", "h k x"),
        linear("attention.self.value", "V", "h v x"),
        linear("attention.output.dense", "O", "x h v", "bO"),
        linear("intermediate.dense", "A", "a x", "bA"),
        linear("output.dense", "B", "x a", "bB"),
    ),
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
