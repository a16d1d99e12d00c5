"""DistilBERT: BERT without token types, under names of its own."""

from transformer_nfn.checkpoints.families.residual import post_norm_block
from transformer_nfn.checkpoints.family import Family, Reader, WordPredictor, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key, Keys
from transformer_nfn.space import Positions, Words

_WORDS, _PLACES = (f"embeddings.{of}_embeddings.weight" for of in ("word", "position"))

KEYS = Keys(
    fixed={"norm": "layer", "causal": False, "groups": None, "eps": 1e-12},
    matter=(
        Key("n_heads", "heads", int, also=("num_attention_heads",)),
        Key("activation", "activation", str, "gelu", same=ACTIVATIONS),
        Key("tie_word_embeddings", "tied", bool, True),
        Key("sinusoidal_pos_embds", "flags", bool, False),
    ),
    sizes={
        "dim": "D",
        "hidden_size": "D",
        "hidden_dim": "D_A",
        "n_layers": "blocks",
        "num_hidden_layers": "blocks",
        "vocab_size": (_WORDS, 0),
        "max_position_embeddings": (_PLACES, 0),
    },
    blocks=6,
    classes="DistilBert",
    harmless=frozenset(
        (
            "pad_token_id",
            "qa_dropout",
            "seq_classif_dropout",
        )
    ),
)

PREDICTOR = WordPredictor(
    reads="vocab_transform",
    norm="vocab_layer_norm",
    decoder="vocab_projector",
    tied=_WORDS,
    bias="vocab_projector.bias",
)

DISTILBERT = Family(
    name="distilbert",
    keys={"distilbert": KEYS},
    prefixes=("distilbert.", ""),
    probes=("transformer.layer.0.attention.q_lin.weight",),
    block="transformer.layer.{}.",
    block_of=post_norm_block,
    matrices=(
        linear("attention.q_lin", "Q", "h k x"),
        linear("attention.k_lin", "K", "h k x"),
        linear("attention.v_lin", "V", "h v x"),
        linear("attention.out_lin", "O", "x h v", "bO"),
        linear("ffn.lin1", "A", "a x", "bA"),
        linear("ffn.lin2", "B", "x a", "bB"),
    ),
    norms=("sa_layer_norm", "output_layer_norm"),
    first_norm="embeddings.LayerNorm",
    embeddings=(Words(_WORDS), Positions(_PLACES)),
    readers=(
        Reader(PREDICTOR.reads, own=True),
        Reader("pre_classifier", own=True, token=0),
        Reader("qa_outputs", own=True),
        Reader("classifier", own=True),
    ),
    predictor=PREDICTOR,
    poolers={"pre_classifier": "relu"},
    pooled={"classifier": "pre_classifier"},
    ignored=("embeddings.position_ids",),
)
