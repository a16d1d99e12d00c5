"""ModernBERT: rotary positions, a gated MLP, and windows in all but every third block.

The first block's attention has no norm of its own: it reads that of the embeddings.
"""

from transformer_nfn.checkpoints.families.llamas.llama import rotary_block
from transformer_nfn.checkpoints.family import Family, Reader, WordPredictor, linear
from transformer_nfn.checkpoints.settings.keys import (
    ACTIVATIONS,
    Biases,
    Joint,
    Key,
    Keys,
    usual_sizes,
)
from transformer_nfn.checkpoints.settings.rotary import typed_ropes, typed_windows
from transformer_nfn.space import Words

_WORDS = "embeddings.tok_embeddings.weight"
_GLOBAL, _LOCAL = "global_rope_theta", "local_rope_theta"
_ROPE = ("rope_parameters", "rope_scaling", "max_position_embeddings", _GLOBAL, _LOCAL)
_EVERY, _WINDOW = "global_attn_every_n_layers", "local_attention"
_WINDOWS = typed_windows(128, 3, _EVERY, both_sides=_WINDOW, full_first=True)
#: Of training, of padding, and of heads that are not read.
_HARMLESS = """
    classifier_dropout classifier_pooling cls_token_id deterministic_flash_attn embedding_dropout
    gradient_checkpointing initializer_cutoff_factor layer_norm_eps mlp_dropout pad_token_id
    position_embedding_type reference_compile repad_logits_with_grad sep_token_id
    sparse_pred_ignore_index sparse_prediction
"""
_TASKS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


KEYS = Keys(
    fixed={"norm": "layer", "causal": False, "groups": None},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("hidden_activation", "activation", str, "gelu", same=ACTIVATIONS),
        Key("norm_eps", "eps", float, 1e-5),
        Key("tie_word_embeddings", "tied", bool, True),
    ),
    joint=(
        *typed_ropes(_ROPE, (_GLOBAL, 160000.0), (_LOCAL, 10000.0), 8192),
        Joint(("layer_types", _EVERY, _WINDOW), "windows", _WINDOWS),
    ),
    supported={
        "norm_bias": False,
        "classifier_bias": False,
        "classifier_activation": "gelu",
        "decoder_bias": True,
    },
    sizes=usual_sizes(_WORDS),
    blocks=22,
    biases=(
        Biases(("attn.Wqkv.bias", "attn.Wo.bias"), there=False, key="attention_bias"),
        Biases(("mlp.Wi.bias", "mlp.Wo.bias"), there=False, key="mlp_bias"),
    ),
    classes="ModernBert",
    harmless=frozenset(_HARMLESS.split()),
    refused=tuple(f"For{task}" for task in _TASKS),
)

MODERNBERT = Family(
    name="modernbert",
    keys={"modernbert": KEYS},
    prefixes=("model.", ""),
    probes=("layers.0.attn.Wqkv.weight", "embeddings.norm.weight"),
    block="layers.{}.",
    block_of=rotary_block,
    matrices=(
        linear("attn.Wqkv", "Q K V", "(g m k + g k + g v) x"),
        linear("attn.Wo", "O", "x g m v", "bO"),
        linear("mlp.Wi", "gate up", "(a + a) x"),
        linear("mlp.Wo", "down", "x a", "bdown"),
    ),
    norms=("attn_norm", "mlp_norm"),
    norm_shifts=False,
    first_norm="embeddings.norm",
    first_norm_is_read=True,
    last_norm="final_norm",
    embeddings=(Words(_WORDS),),
    readers=(Reader("head.dense", own=True, bias=False),),
    predictor=WordPredictor(
        "head.dense", "head.norm", "decoder", _WORDS, "decoder.bias", activation="gelu", shift=False
    ),
    output_bias=False,
)
