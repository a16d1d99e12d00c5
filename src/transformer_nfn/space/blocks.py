"""The blocks that ship with the package, each composed of parts.

A new architecture is a new line: see "Declare your own block" in the documentation.
"""

from types import MappingProxyType

from transformer_nfn.space.block import compose
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.half import Half, NormPlace
from transformer_nfn.space.parts.mlp import GatedMlp, Mlp

#: The paper's block: no skip connection, so the attention's output `r` is permuted too (π_O).
#: Attn(X) = LN(ReLU(X̂ W^(A) + b^(A)) W^(B) + b^(B)), X̂ = LN(MultiHead(X)); section "Weight space",
#: equations attn_MLP and attn_multihead.
PAPER = compose(
    "paper",
    Half(
        Attention(bias_row=False, output="r", output_bias=False),
        "layer",
        NormPlace.AFTER,
        skip=False,
    ),
    Half(Mlp("relu", input="r"), "layer", NormPlace.AFTER, skip=False),
)

#: GPT-2, ViT: the attention writes into the residual stream, whose basis is one for the whole
#: network. Query, key and value biases are the last input row.
RESIDUAL = compose("residual", Half(Attention(), "layer"), Half(Mlp("gelu"), "layer"))

#: The same without a bias at the attention's output.
RESIDUAL_NO_BO = compose(
    "residual_no_bo", Half(Attention(output_bias=False), "layer"), Half(Mlp("gelu"), "layer")
)

#: The Llama family without RoPE (which leaves less of GL): a gated MLP, no biases.
GATED = compose(
    "gated",
    Half(Attention(bias_row=False, output_bias=False), "rms"),
    Half(GatedMlp("silu"), "rms"),
)

#: The same with grouped queries.
GROUPED = compose(
    "grouped",
    Half(Attention(grouped=True, bias_row=False, output_bias=False), "rms"),
    Half(GatedMlp("silu"), "rms"),
)

#: `RESIDUAL` with ReLU between A and B, where each neuron has a positive scale of its own. For
#: identity, not for layers.
RELU = compose("residual_relu", Half(Attention(), "layer"), Half(Mlp("relu", scales=True), "layer"))

#: The Llama family as it is: rotary positions, grouped queries, a gated MLP whose linear branch
#: has a nonzero scale for each neuron, and biases (Qwen2) as a last input row, zero where a file
#: has none. For identity, not for layers.
ROTARY = compose(
    "rotary_gated",
    Half(Attention(grouped=True, rotary=True), "rms"),
    Half(GatedMlp("silu", bias_row=True, scales=True), "rms"),
)

#: Shipped declarations that layers can be made for, by name.
BLOCKS = MappingProxyType(
    {block.name: block for block in (PAPER, RESIDUAL, RESIDUAL_NO_BO, GATED, GROUPED)}
)
