"""Whisper: an encoder of sound and a decoder that writes what it hears; pre-norm, no key bias.

The stream of the encoder is what a GELU makes of two convolutions, so its basis is fixed.
"""

from dataclasses import replace

from transformer_nfn.checkpoints.families.residual import plain_block, projection_matrices
from transformer_nfn.checkpoints.family import Family, Matrix, Reader, linear
from transformer_nfn.checkpoints.settings.keys import ABSENT, ACTIVATIONS, Biases, Key, Keys
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, CrossAttention, Half, Positions, Sound, Words, compose

_WORDS = "decoder.embed_tokens.weight"
_SOURCES, _TARGETS = "encoder.embed_positions.weight", "decoder.embed_positions.weight"
_CONVOLUTIONS = "encoder.conv1", "encoder.conv2"
_ALSO_HEADS = "num_attention_heads", "num_key_value_heads"
_HARMLESS = """
    activation_dropout apply_spec_augment classifier_proj_size decoder_layerdrop encoder_layerdrop
    init_std mask_feature_length mask_feature_min_masks mask_feature_prob mask_time_length
    mask_time_min_masks mask_time_prob median_filter_width pad_token_id scale_embedding
"""


def _biases(*attentions: str) -> tuple[Biases, ...]:
    there = ("q_proj", "v_proj", "out_proj")
    return (
        Biases(tuple(f"{half}.{name}.bias" for half in attentions for name in there), there=True),
        Biases(tuple(f"{half}.k_proj.bias" for half in attentions), there=False),
        Biases(("fc1.bias", "fc2.bias"), there=True),
    )


_ENCODER_KEYS = Keys(
    fixed={"norm": "layer", "groups": None, "causal": False, "eps": 1e-5},
    matter=(
        Key("encoder_attention_heads", "heads", int, 6, also=_ALSO_HEADS),
        Key("activation_function", "activation", str, "gelu", same=ACTIVATIONS),
    ),
    supported={
        "is_causal": ABSENT,  # it would be of both networks
        "is_encoder_decoder": True,
        "use_weighted_layer_sum": False,
    },
    sizes={
        "d_model": "D",
        "hidden_size": "D",
        "encoder_layers": "blocks",
        "num_hidden_layers": "blocks",
        "encoder_ffn_dim": "D_A",
        "max_source_positions": (_SOURCES, 0),
        "num_mel_bins": (f"{_CONVOLUTIONS[0]}.weight", 1),
    },
    blocks=4,
    biases=_biases("self_attn"),
    classes="Whisper",
    # They give what the encoder made, or have no encoder.
    refused=("Classification", "Model", "ForCausalLM"),
    harmless=frozenset(_HARMLESS.split()),
)
_KEYS = replace(
    _ENCODER_KEYS,
    fixed={**_ENCODER_KEYS.fixed, "causal": True},
    matter=(
        Key("decoder_attention_heads", "heads", int, 6),
        *_ENCODER_KEYS.matter[1:],
        Key("tie_word_embeddings", "tied", bool, True),
    ),
    sizes={
        "d_model": "D",
        "hidden_size": "D",
        "decoder_layers": "blocks",
        "decoder_ffn_dim": "D_A",
        "max_target_positions": (_TARGETS, 0),
        "vocab_size": (_WORDS, 0),
    },
    biases=_biases("self_attn", "encoder_attn"),
)


def _block(settings: Settings) -> Block:
    """What others have, and between its halves attention to what the encoder made."""
    attention, mlp = plain_block(settings).halves
    return compose("whisper", attention, Half(CrossAttention(), settings.norm), mlp)


def _matrices() -> tuple[Matrix, ...]:
    plain = projection_matrices("")
    cross = (
        linear("encoder_attn.q_proj", "Qc", "o p x"),
        linear("encoder_attn.k_proj", "Kc", "o p x"),
        linear("encoder_attn.v_proj", "Vc", "o q x"),
        linear("encoder_attn.out_proj", "Oc", "x o q", "bOc"),
    )
    return *plain[:4], *cross, *plain[4:]


_ENCODER = Family(
    name="whisper-encoder",
    keys={"whisper": _ENCODER_KEYS},
    prefixes=("model.", ""),  # the second of an encoder by itself
    probes=(f"{_CONVOLUTIONS[0]}.weight",),
    block="encoder.layers.{}.",
    block_of=plain_block,
    matrices=projection_matrices(""),
    norms=("self_attn_layer_norm", "final_layer_norm"),
    last_norm="encoder.layer_norm",
    embeddings=(Sound(*_CONVOLUTIONS), Positions(_SOURCES)),
)

WHISPER = replace(
    _ENCODER,
    name="whisper",
    keys={"whisper": _KEYS},
    prefixes=("model.",),
    probes=("decoder.layers.0.encoder_attn.q_proj.weight", _TARGETS, *_ENCODER.probes),
    block="decoder.layers.{}.",
    block_of=_block,
    matrices=_matrices(),
    norms=("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
    last_norm="decoder.layer_norm",
    embeddings=(Words(_WORDS), Positions(_TARGETS)),
    readers=(Reader("proj_out", own=True, tied=_WORDS, bias=False),),
    encoder=_ENCODER,
)
