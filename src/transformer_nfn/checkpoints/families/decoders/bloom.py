"""BLOOM: scores fall with the distance of tokens, words go through a norm first."""

from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import Key, Keys, padding
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Words

_WORDS = "word_embeddings.weight"
#: The same sums in the order of several machines; lengths that no tensor has.
_HARMLESS = """
    attention_softmax_in_fp32 bias_dropout_fusion masked_softmax_fusion offset_alibi pad_token_id
    pretraining_tp seq_length skip_bias_add skip_bias_add_qkv
"""

KEYS = Keys(
    fixed={"norm": "layer", "causal": True, "groups": None, "activation": "gelu_new"},
    matter=(
        Key("n_head", "heads", int, also=("num_attention_heads",)),
        Key("layer_norm_epsilon", "eps", float, 1e-5),
        Key("tie_word_embeddings", "tied", bool, True),
        padding(None),
    ),
    supported={"apply_residual_connection_post_layernorm": False, "slow_but_exact": False},
    sizes={
        "hidden_size": "D",
        "n_embed": "D",
        "n_layer": "blocks",
        "num_hidden_layers": "blocks",
        "vocab_size": (_WORDS, 0),
    },
    blocks=2,
    classes="Bloom",
    harmless=frozenset(_HARMLESS.split()),
)


def _block(settings: Settings) -> Block:
    return plain_block(settings, alibi=True)


BLOOM = Family(
    name="bloom",
    keys={"bloom": KEYS},
    prefixes=("transformer.", ""),
    probes=("h.0.self_attention.query_key_value.weight", "word_embeddings_layernorm.weight"),
    block="h.{}.",
    block_of=_block,
    matrices=(
        linear("self_attention.query_key_value", "Q K V", "h (k + k + v) x"),
        linear("self_attention.dense", "O", "x h v", "bO"),
        linear("mlp.dense_h_to_4h", "A", "a x", "bA"),
        linear("mlp.dense_4h_to_h", "B", "x a", "bB"),
    ),
    norms=("input_layernorm", "post_attention_layernorm"),
    first_norm="word_embeddings_layernorm",
    last_norm="ln_f",
    embeddings=(Words(_WORDS),),
    readers=(
        Reader("lm_head", own=True, tied=_WORDS, bias=False),
        Reader("score", own=True, bias=False),
        Reader("classifier", own=True),
        Reader("qa_outputs", own=True),
    ),
)
