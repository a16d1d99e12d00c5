"""GPT-NeoX and Pythia: attention and MLP side by side, a quarter of the coordinates turns."""

from collections.abc import Mapping
from typing import Any

from transformer_nfn.checkpoints.families.decoders.sidebyside import plain_rotary_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import (
    ACTIVATIONS,
    Biases,
    Joint,
    Key,
    Keys,
    padding,
    usual_sizes,
)
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Rope, Words

#: What the first files call the part that turns and the base.
_EARLIER = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}


def _rope(config: Mapping[str, Any], blocks: int) -> Rope:
    # Outside of the table only the first names are read.
    stated = {name: value for name, value in config.items() if name not in _EARLIER.values()}
    stated |= {now: config[was] for was, now in _EARLIER.items() if config.get(was) is not None}
    return read_rope(stated, 2048, part=0.25, theta=10000.0)


def _block(settings: Settings) -> Block:
    return plain_rotary_block(settings, parallel=settings.flag("use_parallel_residual") is None)


KEYS = Keys(
    fixed={"norm": "layer", "groups": None, "causal": True},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("hidden_act", "activation", str, "gelu", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-5),
        Key("tie_word_embeddings", "tied", bool, False),
        Key("use_parallel_residual", "flags", bool, True),
        padding(None),
    ),
    joint=(Joint((*ROPE, *_EARLIER), "rope", _rope),),
    sizes=usual_sizes("embed_in.weight"),
    blocks=44,
    classes="GPTNeoX",
    biases=(
        Biases(
            ("attention.query_key_value.bias", "attention.dense.bias"),
            there=True,
            key="attention_bias",
        ),
    ),
    harmless=frozenset(("is_decoder", "pad_token_id")),
)

NEOX = Family(
    name="gpt_neox",
    keys={"gpt_neox": KEYS},
    prefixes=("gpt_neox.", ""),
    probes=("layers.0.attention.query_key_value.weight", "embed_in.weight"),
    block="layers.{}.",
    block_of=_block,
    matrices=(
        linear("attention.query_key_value", "Q K V", "g (m k + k + v) x"),
        linear("attention.dense", "O", "x g m v", "bO"),
        linear("mlp.dense_h_to_4h", "A", "a x", "bA"),
        linear("mlp.dense_4h_to_h", "B", "x a", "bB"),
    ),
    norms=("input_layernorm", "post_attention_layernorm"),
    last_norm="final_layer_norm",
    embeddings=(Words("embed_in.weight"),),
    readers=(
        Reader("embed_out", own=True, tied="embed_in.weight", bias=False),
        Reader("score", own=True, bias=False),
        Reader("classifier", own=True),
        Reader("qa_outputs", own=True),
    ),
    ignored=(".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq"),
)
