"""OPT: learned positions from the third row on, ReLU, pre-norm."""

from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Family, Reader, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Key, Keys
from transformer_nfn.space import Positions, Words

KEYS = Keys(
    fixed={"norm": "layer", "causal": True, "groups": None, "eps": 1e-5},
    matter=(
        Key("num_attention_heads", "heads", int),
        Key("activation_function", "activation", str, "relu", same=ACTIVATIONS),
        Key("tie_word_embeddings", "tied", bool, True),
        Key("pad_token_id", "flags", int, 1, least=-1, beside="score.", null=True),
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
    matrices=(
        linear("self_attn.q_proj", "Q", "h k x"),
        linear("self_attn.k_proj", "K", "h k x"),
        linear("self_attn.v_proj", "V", "h v x"),
        linear("self_attn.out_proj", "O", "x h v", "bO"),
        linear("fc1", "A", "a x", "bA"),
        linear("fc2", "B", "x a", "bB"),
    ),
    norms=("self_attn_layer_norm", "final_layer_norm"),
    last_norm="final_layer_norm",
    embeddings=(Words("embed_tokens.weight"), Positions("embed_positions.weight", first=2)),
    readers=(
        Reader("lm_head", own=True, tied="embed_tokens.weight", bias=False),
        Reader("score", own=True, bias=False),
        Reader("qa_outputs", own=True),
    ),
)
