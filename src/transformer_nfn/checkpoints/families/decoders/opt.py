"""OPT: learned positions from the third row on, ReLU, pre-norm."""

from transformer_nfn.checkpoints.families.residual import plain_block, projection_matrices
from transformer_nfn.checkpoints.family import Family, Reader
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key, Keys, padding
from transformer_nfn.space import Positions, Words

KEYS = Keys(
    fixed={"norm": "layer", "causal": True, "groups": None, "eps": 1e-5},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("activation_function", "activation", str, "relu", same=ACTIVATIONS),
        Key("tie_word_embeddings", "tied", bool, True),
        padding(1),
    ),
    supported={
        "do_layer_norm_before": True,
        "enable_bias": True,
        "layer_norm_elementwise_affine": True,
        "_remove_final_layer_norm": False,
    },
    sizes={
        "hidden_size": "D",
        "word_embed_proj_dim": "D",
        "ffn_dim": "D_A",
        "intermediate_size": "D_A",
        "num_hidden_layers": "blocks",
        "vocab_size": ("embed_tokens.weight", 0),
    },
    blocks=12,
    classes="OPT",
    harmless=frozenset(("init_std", "layerdrop", "max_position_embeddings", "pad_token_id")),
)

OPT = Family(
    name="opt",
    keys={"opt": KEYS},
    prefixes=("model.decoder.", "decoder."),
    probes=("layers.0.self_attn.out_proj.weight", "layers.0.fc1.weight", "embed_positions.weight"),
    block="layers.{}.",
    block_of=plain_block,
    matrices=projection_matrices(""),
    norms=("self_attn_layer_norm", "final_layer_norm"),
    last_norm="final_layer_norm",
    embeddings=(Words("embed_tokens.weight"), Positions("embed_positions.weight", first=2)),
    readers=(
        Reader("lm_head", own=True, tied="embed_tokens.weight", bias=False),
        Reader("score", own=True, bias=False),
        Reader("qa_outputs", own=True),
    ),
)
