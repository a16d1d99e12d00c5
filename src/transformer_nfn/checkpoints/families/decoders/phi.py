"""Phi-1 and Phi-2: attention and MLP read one norm side by side, half of the coordinates turns."""

from transformer_nfn.checkpoints.families.decoders.sidebyside import plain_rotary_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import (
    ACTIVATIONS,
    Joint,
    Key,
    Keys,
    padding,
    usual_sizes,
)
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.space import Words

KEYS = Keys(
    fixed={"norm": "layer", "causal": True},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("num_key_value_heads", "groups", int, None),
        Key("hidden_act", "activation", str, "gelu_new", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-5),
        Key("tie_word_embeddings", "tied", bool, False),
        padding(None),
    ),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 2048, part=0.5, theta=10000.0)),
    ),
    supported={"qk_layernorm": False},
    sizes=usual_sizes("embed_tokens.weight"),
    blocks=24,
    classes="Phi",
    harmless=frozenset(("pad_token_id",)),
)

PHI = Family(
    name="phi",
    keys={"phi": KEYS},
    prefixes=("model.", ""),
    probes=("layers.0.self_attn.dense.weight", "layers.0.mlp.fc1.weight"),
    block="layers.{}.",
    block_of=plain_rotary_block,
    matrices=(
        linear("self_attn.q_proj", "Q", "g m k x"),
        linear("self_attn.k_proj", "K", "g k x"),
        linear("self_attn.v_proj", "V", "g v x"),
        linear("self_attn.dense", "O", "x g m v", "bO"),
        linear("mlp.fc1", "A", "a x", "bA"),
        linear("mlp.fc2", "B", "x a", "bB"),
    ),
    norms=("input_layernorm", "input_layernorm"),
    last_norm="final_layernorm",
    embeddings=(Words("embed_tokens.weight"),),
    readers=(
        Reader("lm_head", own=True, tied="embed_tokens.weight"),
        Reader("score", own=True, bias=("ForTokenClassification",)),
    ),
    ignored=("rotary_emb.inv_freq",),
)
