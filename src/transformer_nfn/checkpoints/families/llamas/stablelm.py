"""StableLM: Llama with LayerNorm, and only a quarter of the coordinates turns."""

from dataclasses import replace

from transformer_nfn.checkpoints.families.llamas.llama import INPUTS, LLAMA, LLAMA_KEYS, MLP, OUTPUT
from transformer_nfn.checkpoints.settings.keys import Biases, Joint, Key
from transformer_nfn.checkpoints.settings.rotary import ROPE, read_rope

_OTHERS = ("rms_norm_eps", "pretraining_tp", "num_key_value_heads", "is_causal")

_KEYS = replace(
    LLAMA_KEYS,
    classes="StableLm",
    fixed={"norm": "layer", "causal": True},
    matter=(
        *(key for key in LLAMA_KEYS.matter if key.name not in _OTHERS),
        Key("layer_norm_eps", "eps", float, 1e-5),
        Key("num_key_value_heads", "groups", int, 32, null=True),
    ),
    joint=(
        Joint(ROPE, "rope", lambda config, _: read_rope(config, 4096, part=0.25, theta=10000.0)),
    ),
    supported={"qk_layernorm": False, "use_parallel_residual": False, "is_causal": True},
    biases=(
        Biases(INPUTS, there=False, key="use_qkv_bias"),
        Biases((*OUTPUT, *MLP), there=False),
    ),
    harmless=LLAMA_KEYS.harmless | {"pretraining_tp"},
)

STABLELM = replace(LLAMA, name="stablelm", keys={"stablelm": _KEYS}, norm_shifts=True)
