"""ALBERT: one block for all depths, and words of another size than the stream."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.encoders.bert import BERT
from transformer_nfn.checkpoints.families.encoders.bert import KEYS as BERT_KEYS
from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Reader, WordPredictor, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, NormPlace, Positions, TokenTypes, Widened, Words

_WORDS, _PLACES, _TYPES = (
    f"embeddings.{of}_embeddings.weight" for of in ("word", "position", "token_type")
)
_EPS = 1e-12
#: Of structures that no released model has.
_HARMLESS = ["down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"]

KEYS = replace(
    BERT_KEYS,
    fixed={**BERT_KEYS.fixed, "eps": _EPS},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("hidden_act", "activation", str, "gelu_new", same=ACTIVATIONS),
        Key("tie_word_embeddings", "tied", bool, True),
        Key("num_hidden_layers", "depth", int),
    ),
    supported={"layer_norm_eps": _EPS, "num_hidden_groups": 1, "inner_group_num": 1},
    sizes={
        **{key: of for key, of in BERT_KEYS.sizes.items() if of != "blocks"},
        "embedding_size": (_WORDS, 1),
    },
    blocks=None,
    classes="Albert",
    harmless=BERT_KEYS.harmless | set(_HARMLESS),
)


def _block(settings: Settings) -> Block:
    # The first depth reads what the words became, all others a norm's output.
    return plain_block(settings, NormPlace.AFTER_SUM, raw=True)


PREDICTOR = WordPredictor(
    "predictions.dense", "predictions.LayerNorm", "predictions.decoder", _WORDS, "predictions.bias"
)

ALBERT = replace(
    BERT,
    name="albert",
    keys={"albert": KEYS},
    prefixes=("albert.", ""),
    probes=("encoder.albert_layer_groups.0.albert_layers.0.ffn.weight",),
    block="encoder.albert_layer_groups.0.albert_layers.0.",
    block_of=_block,
    matrices=(
        linear("attention.query", "Q", "h k x"),
        linear("attention.key", "K", "h k x"),
        linear("attention.value", "V", "h v x"),
        linear("attention.dense", "O", "x h v", "bO"),
        linear("ffn", "A", "a x", "bA"),
        linear("ffn_output", "B", "x a", "bB"),
    ),
    norms=("attention.LayerNorm", "full_layer_layer_norm"),
    first_norm=None,
    embeddings=(
        Words(_WORDS, outer=False),
        Positions(_PLACES, outer=False),
        TokenTypes(_TYPES, outer=False),
        Widened("embeddings.LayerNorm", "encoder.embedding_hidden_mapping_in", _EPS),
    ),
    readers=(
        Reader("pooler", token=0),
        Reader(PREDICTOR.reads, own=True),
        Reader("qa_outputs", own=True),
        Reader("classifier", own=True),
    ),
    predictor=PREDICTOR,
    poolers={"pooler": "tanh"},
    pooled={"classifier": "pooler", "sop_classifier.classifier": "pooler"},
)
