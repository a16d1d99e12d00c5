"""PyTorch's own `nn.TransformerEncoder` as its state dict is: layers, no embedding and no head.

A state dict says neither how many heads there are nor where the norms stand, so a config.json or
the user does. A `norm_first` encoder needs the norm that usually ends it.
"""

from dataclasses import replace

from transformer_nfn.checkpoints.families.residual import plain_block
from transformer_nfn.checkpoints.family import Family, Matrix, linear
from transformer_nfn.checkpoints.settings.keys import ACTIVATIONS, Biases, Key, Keys
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, NormPlace, Vectors

_BIASES = ("self_attn.in_proj_bias", "self_attn.out_proj.bias", "linear1.bias", "linear2.bias")

_KEYS = Keys(
    fixed={"norm": "layer", "causal": False, "groups": None},
    matter=(
        Key("nhead", "heads", int),
        Key("activation", "activation", str, "relu", same=ACTIVATIONS),
        Key("layer_norm_eps", "eps", float, 1e-5),
        # Of the inputs that a verdict is confirmed on.
        Key("tokens", "sizes.tokens", int, 16),
    ),
    sizes={"d_model": "D", "dim_feedforward": "D_A", "num_layers": "blocks"},
    supported={"norm_first": False},
    biases=(Biases(_BIASES, there=True, key="bias"),),
    harmless=frozenset(("batch_first", "dropout", "enable_nested_tensor", "mask_check")),
)


def _post_norm_block(settings: Settings) -> Block:
    """The first block reads what no norm made, so none is folded into what reads."""
    return plain_block(settings, NormPlace.AFTER_SUM, raw=True)


TORCH_ENCODER = Family(
    name="torch-encoder",
    keys={"torch-encoder": _KEYS},
    # As `nn.DataParallel` stores it, it is below "module.".
    prefixes=(
        "module.transformer_encoder.",
        "transformer_encoder.",
        "transformer.encoder.",
        "encoder.",
        "",
    ),
    probes=("layers.0.self_attn.in_proj_weight", "layers.0.linear1.weight"),
    block="layers.{}.",
    block_of=_post_norm_block,
    matrices=(
        Matrix(
            "self_attn.in_proj_weight",
            ("Q", "K", "V"),
            "(h k + h k + h v) x",
            "self_attn.in_proj_bias",
        ),
        linear("self_attn.out_proj", "O", "x h v", "bO"),
        linear("linear1", "A", "a x", "bA"),
        linear("linear2", "B", "x a", "bB"),
    ),
    norms=("norm1", "norm2"),
    embeddings=(Vectors(),),
    refused=("norm.",),
)
TORCH_ENCODER_NORM_FIRST = replace(
    TORCH_ENCODER,
    name="torch-encoder-norm-first",
    keys={"torch-encoder-norm-first": replace(_KEYS, supported={"norm_first": True})},
    block_of=plain_block,
    last_norm="norm",
    refused=(),
)
