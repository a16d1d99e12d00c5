"""BERT: norms after each sum with the residual stream."""

from transformer_nfn.checkpoints.families.residual import encoder_matrices, post_norm_block
from transformer_nfn.checkpoints.family import Family, Reader, WordPredictor
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key, Keys, usual_sizes
from transformer_nfn.space import Positions, TokenTypes, Words

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
        **usual_sizes("embeddings.word_embeddings.weight"),
        "max_position_embeddings": ("embeddings.position_embeddings.weight", 0),
        "type_vocab_size": ("embeddings.token_type_embeddings.weight", 0),
    },
    blocks=12,
    classes="Bert",
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

PREDICTOR = WordPredictor(
    reads="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    decoder="cls.predictions.decoder",
    tied="embeddings.word_embeddings.weight",
    bias="cls.predictions.bias",
)

BERT = Family(
    name="bert",
    keys={"bert": KEYS},
    prefixes=("bert.", ""),
    probes=("encoder.layer.0.attention.self.query.weight",),
    block="encoder.layer.{}.",
    block_of=post_norm_block,
    matrices=encoder_matrices("attention.self"),
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
    first_norm="embeddings.LayerNorm",
    embeddings=(
        Words("embeddings.word_embeddings.weight"),
        Positions("embeddings.position_embeddings.weight"),
        TokenTypes("embeddings.token_type_embeddings.weight"),
    ),
    readers=(
        Reader("pooler.dense", token=0),
        Reader(PREDICTOR.reads, own=True),
        Reader("qa_outputs", own=True),
        Reader("classifier", own=True),
    ),
    predictor=PREDICTOR,
    poolers={"pooler.dense": "tanh"},
    # A classifier of single tokens reads the stream, all others what the pooler makes of it.
    pooled={"cls.seq_relationship": "pooler.dense", "classifier": "pooler.dense"},
    ignored=("embeddings.position_ids",),
)
