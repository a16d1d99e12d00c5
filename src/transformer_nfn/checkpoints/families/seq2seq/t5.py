"""T5: an encoder and a decoder of one kind, with biases for the distance of tokens.

Of the biases there is one table for the encoder and one for the decoder, each in its first block.
Scores are not scaled, and norms have no shift. Words are one table for both.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.family import Family, Matrix, Reader, linear
from transformer_nfn.checkpoints.settings.keys import (
    ABSENT,
    ACTIVATIONS,
    Biases,
    Joint,
    Key,
    Keys,
    usual_sizes,
)
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import (
    Attention,
    Block,
    CrossAttention,
    GatedMlp,
    Half,
    Mlp,
    Words,
    compose,
)

_MLP = ("feed_forward_proj", "dense_act_fn", "is_gated_act")
_ATTENTIONS = ("layer.0.SelfAttention", "layer.1.EncDecAttention")
_MLPS = ("layer.1.DenseReluDense", "layer.2.DenseReluDense")
_NO_BIASES = tuple(f"{half}.{name}.bias" for half in _ATTENTIONS for name in "qkvo") + tuple(
    f"{half}.{name}.bias" for half in _MLPS for name in ("wi", "wi_0", "wi_1", "wo")
)
_WORDS, _SCALED = "shared.weight", ("scale_decoder_outputs", "tie_word_embeddings")
_RELATIVE = "{}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_HARMLESS = """
    classifier_dropout d_head decoder_start_token_id dropout_rate initializer_factor n_positions
    output_past pad_token_id relative_attention
"""


def _activation(*, gated: bool) -> Joint:
    """Of an MLP that is gated or not; what was derived once and stored comes before the word."""

    def read(config: Mapping[str, Any], _: int) -> str:
        said = config.get(_MLP[0], "relu")
        if not isinstance(said, str) or said.count("-") > said.startswith("gated-"):
            raise CheckpointError(f"{_MLP[0]} {said!r:.40} is not known")
        if config.get(_MLP[2], said.startswith("gated-")) is not gated:
            kind = "gated" if gated else "not gated"
            raise CheckpointError(f"{_MLP[2]} or {_MLP[0]}: the MLP of this file is {kind}")
        usual = "gelu_new" if said == "gated-gelu" else said.removeprefix("gated-")
        if not isinstance(name := config.get(_MLP[1], usual), str):
            raise CheckpointError(f"{_MLP[1]} {name!r:.40} is not known")
        return ACTIVATIONS.get(name, name)

    return Joint(_MLP, "activation", read)


def _is_scaled(config: Mapping[str, Any], _: int) -> bool:
    """As files say it now, else as the first of them did."""
    said = config.get(_SCALED[0], config.get(_SCALED[1]) is not False)
    if type(said) is not bool:
        raise CheckpointError(f"{_SCALED[0]} should be bool, not {said!r:.40}")
    return said


_DEPTHS = ("num_decoder_layers", "num_layers", "num_hidden_layers")


def _as_deep(config: Mapping[str, Any], blocks: int) -> None:
    """A decoder is as deep as the encoder where nothing is said."""
    said = config.get(_DEPTHS[0])
    said = config.get(_DEPTHS[1], 6) if said is None else said
    if said != blocks:
        raise CheckpointError(f"{_DEPTHS[0]} is {said!r:.40}, the decoder has {blocks} blocks")


#: An encoder by itself says that it is none.
_SAYS = "is_encoder_decoder"
_KEYS = Keys(
    fixed={"norm": "rms", "groups": None, "causal": False, "tied": True},
    matter=(
        Key("num_heads", "heads", int, also=("num_attention_heads",)),
        Key("layer_norm_epsilon", "eps", float, 1e-6),
        Key("d_model", "sizes.width", int, 512, also=("hidden_size",)),
    ),
    joint=(
        _activation(gated=False),
        Joint(_SCALED, "flags", _is_scaled),
    ),
    supported={
        "relative_attention_max_distance": 128,
        "is_causal": ABSENT,  # it would be of both networks
        _SAYS: True,
        "is_decoder": False,
    },
    sizes={
        **usual_sizes(_WORDS),
        "d_model": "D",
        "d_ff": "D_A",
        "d_kv": "D_k",
        "num_layers": "blocks",
        "relative_attention_num_buckets": (_RELATIVE.format("encoder"), 0),
    },
    blocks=6,
    biases=(Biases(_NO_BIASES, there=False),),
    classes="T5",
    # They make the inputs of the decoder themselves, or give what the encoder made.
    refused=("Classification", "ForQuestionAnswering", "Model"),
    harmless=frozenset(_HARMLESS.split()),
)
_ENCODER_KEYS = replace(
    _KEYS,
    supported={key: value for key, value in _KEYS.supported.items() if key != _SAYS},
    harmless=_KEYS.harmless | {_SAYS},
)
_DECODER_KEYS = replace(
    _KEYS,
    fixed={**_KEYS.fixed, "causal": True},
    joint=(*_KEYS.joint, Joint(_DEPTHS, "depth", _as_deep)),
    sizes={key: of for key, of in _KEYS.sizes.items() if of != "blocks"}
    | {"relative_attention_num_buckets": (_RELATIVE.format("decoder"), 0)},
    blocks=None,
)


def _of_gated(keys: Keys) -> dict[str, Keys]:
    return {"t5": replace(keys, joint=(_activation(gated=True), *keys.joint[1:]))}


def _block(settings: Settings, mlp: Mlp | GatedMlp) -> Block:
    attention = Attention(relative=True, scale=1.0, causal=settings.causal)
    cross = (CrossAttention(scale=1.0),) if settings.causal else ()
    return compose("t5", *(Half(part, "rms") for part in (attention, *cross, mlp)))


def _plain(settings: Settings) -> Block:
    return _block(settings, Mlp(settings.activation, scales=True))


def _gated(settings: Settings) -> Block:
    return _block(settings, GatedMlp(settings.activation, bias_row=True, scales=True))


def _attention(name: str, suffix: str = "") -> tuple[Matrix, ...]:
    Q, K, V, O, bias = (f"{tensor}{suffix}" for tensor in ("Q", "K", "V", "O", "bO"))
    heads, k, v = ("o", "p", "q") if suffix else ("h", "k", "v")
    return (
        linear(f"{name}.q", Q, f"{heads} {k} x"),
        linear(f"{name}.k", K, f"{heads} {k} x"),
        linear(f"{name}.v", V, f"{heads} {v} x"),
        linear(f"{name}.o", O, f"x {heads} {v}", bias),
    )


def _mlp(number: int) -> tuple[Matrix, ...]:
    name = f"layer.{number}.DenseReluDense"
    return linear(f"{name}.wi", "A", "a x", "bA"), linear(f"{name}.wo", "B", "x a", "bB")


def _gated_mlp(number: int) -> tuple[Matrix, ...]:
    name = f"layer.{number}.DenseReluDense"
    return (
        linear(f"{name}.wi_0", "gate", "a x"),
        linear(f"{name}.wi_1", "up", "a x"),
        linear(f"{name}.wo", "down", "x a", "bdown"),
    )


_ENCODER = Family(
    name="t5-encoder",
    keys={"t5": _ENCODER_KEYS},
    prefixes=("",),
    probes=("encoder.block.0.layer.1.DenseReluDense.wi.weight",),
    block="encoder.block.{}.",
    block_of=_plain,
    matrices=(*_attention("layer.0.SelfAttention"), *_mlp(1)),
    norms=("layer.0.layer_norm", "layer.1.layer_norm"),
    norm_shifts=False,
    last_norm="encoder.final_layer_norm",
    embeddings=(Words(_WORDS),),
    shared={"relative": _RELATIVE.format("encoder")},
    ignored=("EncDecAttention.relative_attention_bias.weight",),
)


def _scaled(logits: Tensor, settings: Settings) -> Tensor:
    return logits * settings.size("width") ** -0.5 if settings.flag(_SCALED[0]) else logits


T5 = replace(
    _ENCODER,
    name="t5",
    keys={"t5": _DECODER_KEYS},
    probes=("decoder.block.0.layer.2.DenseReluDense.wi.weight", *_ENCODER.probes),
    block="decoder.block.{}.",
    matrices=(
        *_attention("layer.0.SelfAttention"),
        *_attention("layer.1.EncDecAttention", "c"),
        *_mlp(2),
    ),
    norms=("layer.0.layer_norm", "layer.1.layer_norm", "layer.2.layer_norm"),
    last_norm="decoder.final_layer_norm",
    readers=(Reader("lm_head", own=True, tied=_WORDS, bias=False, after=_scaled),),
    shared={"relative": _RELATIVE.format("decoder")},
    encoder=_ENCODER,
)

_GATED_ENCODER = replace(
    _ENCODER,
    name="t5-gated-encoder",
    keys=_of_gated(_ENCODER_KEYS),
    probes=("encoder.block.0.layer.1.DenseReluDense.wi_0.weight",),
    block_of=_gated,
    matrices=(*_ENCODER.matrices[:4], *_gated_mlp(1)),
)
T5_GATED = replace(
    T5,
    name="t5-gated",
    keys=_of_gated(_DECODER_KEYS),
    probes=("decoder.block.0.layer.2.DenseReluDense.wi_0.weight", *_GATED_ENCODER.probes),
    block_of=_gated,
    matrices=(*T5.matrices[:8], *_gated_mlp(2)),
    encoder=_GATED_ENCODER,
)
