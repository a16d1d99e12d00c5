"""BERT: norms after each sum with the residual stream."""

from transformer_nfn.checkpoints.families.residual import declared, encoder_matrices
from transformer_nfn.checkpoints.family import Family, Reader, Writer
from transformer_nfn.checkpoints.keys import ACTIVATIONS, Key, Keys

KEYS = Keys(
    fixed={"norm": "layer", "causal": False, "groups": None},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("hidden_act", "activation", str, "gelu", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-12),
        Key("tie_word_embeddings", "tied", bool, True),
    ),
    supported={
        "position_embedding_type": "absolute",
        "add_cross_attention": False,
        "is_decoder": False,
    },
    sizes={
        "hidden_size": "D",
        "intermediate_size": "D_A",
        "num_hidden_layers": "blocks",
        "vocab_size": ("embeddings.word_embeddings.weight", 0),
        "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
        "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    },
    blocks=12,
    # The padding token stops gradients; the others were written by the first BERT for no one.
    harmless=frozenset(
        (
            "directionality",
            "pad_token_id",
            "pooler_fc_size",
            "pooler_num_attention_heads",
            "pooler_num_fc_layers",
            "pooler_size_per_head",
            "pooler_type",
        )
    ),
)

BERT = Family(
    name="bert",
    keys={"bert": KEYS},
    prefixes=("bert.", ""),
    probe="encoder.layer.0.attention.self.query.weight",
    block="encoder.layer.{}.",
    declared=declared,
    matrices=encoder_matrices("attention.self"),
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
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
        Reader("classifier", own=True),
    ),
    # A classifier of single tokens reads the stream, all others what the pooler makes of it.
    pooled=("cls.seq_relationship", "classifier"),
    behind=("cls.predictions.",),
    ignored=("embeddings.position_ids",),
)
