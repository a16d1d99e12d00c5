"""Falcon 7B: one key head for all, attention and MLP side by side; no biases but in the norms."""

from transformer_nfn.checkpoints.families.decoders.sidebyside import plain_rotary_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Biases, Joint, Key, Keys, padding
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.space import Words

_WORDS = "word_embeddings.weight"
_LAYERS = "self_attention.query_key_value", "self_attention.dense", "mlp.dense_h_to_4h"
_BIASES = tuple(f"{layer}.bias" for layer in (*_LAYERS, "mlp.dense_4h_to_h"))

KEYS = Keys(
    fixed={"norm": "layer", "causal": True, "groups": 1},
    matter=(
        Key("num_attention_heads", "heads", int, also=("n_head",)),
        Key("activation", "activation", str, "gelu", same=ACTIVATIONS),
        Key("layer_norm_epsilon", "eps", float, 1e-5),
        Key("tie_word_embeddings", "tied", bool, True),
        padding(None),
    ),
    joint=(Joint(ROPE, "rope", lambda config, _: read_rope(config, 2048, theta=10000.0)),),
    supported={
        "alibi": False,
        "apply_residual_connection_post_layernorm": False,
        "bias": False,
        "multi_query": True,
        "new_decoder_architecture": False,
        "num_ln_in_parallel_attn": None,
        "output_attentions": False,  # with it, no token is hidden from those before it
        "parallel_attn": True,
    },
    sizes={
        "hidden_size": "D",
        "ffn_hidden_size": "D_A",
        "num_hidden_layers": "blocks",
        "n_layer": "blocks",
        "vocab_size": (_WORDS, 0),
    },
    blocks=32,
    classes="Falcon",
    biases=(Biases(_BIASES, there=False),),
    # One key head whatever the number says.
    harmless=frozenset(("num_kv_heads", "n_head_kv", "pad_token_id")),
)

FALCON = Family(
    name="falcon",
    keys={"falcon": KEYS},
    prefixes=("transformer.", ""),
    probes=("h.0.self_attention.query_key_value.weight", "h.0.mlp.dense_h_to_4h.weight"),
    block="h.{}.",
    block_of=plain_rotary_block,
    matrices=(
        linear("self_attention.query_key_value", "Q K V", "g (m k + k + v) x"),
        linear("self_attention.dense", "O", "x g m v", "bO"),
        linear("mlp.dense_h_to_4h", "A", "a x", "bA"),
        linear("mlp.dense_4h_to_h", "B", "x a", "bB"),
    ),
    norms=("input_layernorm", "input_layernorm"),
    last_norm="ln_f",
    embeddings=(Words(_WORDS),),
    readers=(
        Reader("lm_head", own=True, tied=_WORDS, bias=False),
        Reader("score", own=True, bias=False),
        Reader("classifier", own=True),
        Reader("qa_outputs", own=True),
    ),
    output_bias=False,
)
