"""Gemma: Llama whose norms store their scale less 1, and whose words are scaled."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llama import LLAMA, LLAMA_KEYS
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Joint, Key
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.space import Scaled, Words

_OTHERS = ("hidden_act", "tie_word_embeddings", "num_key_value_heads", "pretraining_tp")

_KEYS = replace(
    LLAMA_KEYS,
    classes="Gemma",
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("hidden_act", "activation", str, "gelu_pytorch_tanh", same=ACTIVATIONS),
        Key("hidden_activation", "flags", str, None, same=ACTIVATIONS),
        Key("tie_word_embeddings", "tied", bool, True),
        Key("num_key_value_heads", "groups", int, 16, null=True),
    ),
    joint=(Joint(ROPE, "rope", lambda config, _: read_rope(config, 8192, theta=10000.0)),),
    supported={"use_bidirectional_attention": None},
    blocks=28,
    harmless=LLAMA_KEYS.harmless | {"pretraining_tp", "mlp_bias"},
)

GEMMA = replace(
    LLAMA,
    name="gemma",
    keys={"gemma": _KEYS},
    norm_offset=1.0,
    embeddings=(Words("embed_tokens.weight"), Scaled()),
)
