"""OLMo 2: no norm before a half but one after it, and norms of all queries and all keys."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llamas.llama import LLAMA, LLAMA_KEYS, MLP, rotary_block
from transformer_nfn.checkpoints.family import Matrix
from transformer_nfn.checkpoints.settings.keys import Biases, Joint, Key, padding
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block

_OTHERS = ("rms_norm_eps", "pretraining_tp", "pad_token_id")
_KEYS = replace(
    LLAMA_KEYS,
    classes="Olmo2",
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("rms_norm_eps", "eps", float, 1e-5),
        padding(1),
    ),
    joint=(Joint(ROPE, "rope", lambda config, _: read_rope(config, 2048)),),
    biases=(LLAMA_KEYS.biases[0], Biases(MLP, there=False)),
    harmless=LLAMA_KEYS.harmless | {"pretraining_tp", "mlp_bias"},
)


def _block(settings: Settings) -> Block:
    return rotary_block(settings, after=True, normed=True, together=True, raw=True)


OLMO2 = replace(
    LLAMA,
    name="olmo2",
    keys={"olmo2": _KEYS},
    probes=(
        *LLAMA.probes,
        "layers.0.self_attn.q_norm.weight",
        "layers.0.post_feedforward_layernorm.weight",
    ),
    block_of=_block,
    matrices=(
        LLAMA.matrices[0],
        Matrix("self_attn.q_norm.weight", ("nQ",), "g m f j"),
        Matrix("self_attn.k_norm.weight", ("nK",), "g f j"),
        Matrix("post_attention_layernorm.weight", ("nO",), "x"),
        Matrix("post_feedforward_layernorm.weight", ("ndown",), "x"),
        *LLAMA.matrices[1:],
    ),
    norms=None,
)
