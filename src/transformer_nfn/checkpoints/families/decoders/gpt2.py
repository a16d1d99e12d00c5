"""GPT-2: Conv1D is [in, out], queries, keys and values fused in one matrix, pre-norm."""

from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key, Keys, padding
from transformer_nfn.space import Positions, Words

#: The choices of a head that few files have.
_SUMMARY = "multiple_choice_head."

KEYS = Keys(
    fixed={"groups": None},
    matter=(
        Key("n_head", "heads", int, also=("num_attention_heads",)),
        Key("activation_function", "activation", str, "gelu_new", same=ACTIVATIONS),
        Key("layer_norm_epsilon", "eps", float, 1e-5),
        # Not a key of the format: files whose means were taken out of the weights and whose
        # LayerNorms then became RMSNorms, as rotating quantisers do, say so with --set norm=rms.
        Key("norm", "norm", str, "layer", asked=True),
        Key("is_causal", "causal", bool, True),
        Key("tie_word_embeddings", "tied", bool, True),
        padding(None),
        Key("summary_type", "flags", str, "cls_index", beside=_SUMMARY),
        Key("summary_use_proj", "flags", bool, True, beside=_SUMMARY),
        Key("summary_activation", "flags", str, None, beside=_SUMMARY),
        Key("summary_proj_to_labels", "flags", bool, True, beside=_SUMMARY),
    ),
    supported={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    sizes={
        "n_embd": "D",
        "hidden_size": "D",
        "n_inner": "D_A",
        "n_layer": "blocks",
        "num_hidden_layers": "blocks",
        "vocab_size": ("wte.weight", 0),
        "n_positions": ("wpe.weight", 0),
        "max_position_embeddings": ("wpe.weight", 0),
    },
    blocks=12,
    classes="GPT2",
    # The order of the attention's products, and the length of a mask that is no weight any more.
    harmless=frozenset(
        ["is_decoder", "n_ctx", "predict_special_tokens", "reorder_and_upcast_attn"],
    ),
)

GPT2 = Family(
    name="gpt2",
    keys={"gpt2": KEYS},
    prefixes=("transformer.", ""),
    probes=("h.0.attn.c_attn.weight",),
    block="h.{}.",
    block_of=plain_block,
    matrices=(
        linear("attn.c_attn", "Q K V", "x (h k + h k + h v)"),
        linear("attn.c_proj", "O", "h v x", "bO"),
        linear("mlp.c_fc", "A", "x a", "bA"),
        linear("mlp.c_proj", "B", "a x", "bB"),
    ),
    norms=("ln_1", "ln_2"),
    last_norm="ln_f",
    embeddings=(Words("wte.weight"), Positions("wpe.weight")),
    readers=(
        Reader("lm_head", own=True, tied="wte.weight", bias=False),
        Reader("score", own=True, bias=False),
        Reader("classifier", own=True),
        Reader("qa_outputs", own=True),
    ),
    ignored=(".attn.bias", ".attn.masked_bias"),
)
