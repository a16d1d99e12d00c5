"""The blocks that ship with the package, each a table.

A new architecture is a new table: see "Declare your own block" in the documentation.
"""

from types import MappingProxyType

from transformer_nfn.space.axes import free, linear, permuted, rotary, scaled
from transformer_nfn.space.block import declare
from transformer_nfn.space.functions import gated_block, grouped_block, paper_block, residual_block

#: The paper's block: no skip connection, so the attention's output `r` is permuted too (π_O).
PAPER = declare(
    "paper",
    axes={
        "x": free("D"),
        "y": free("D"),
        "h": permuted("heads"),  # τ
        "k": linear("D_k", per="h"),  # M
        "v": linear("D_v", per="h"),  # N
        "r": permuted("D"),  # π_O
        "a": permuted("D_A"),  # π_A
    },
    tensors={
        "Q": "h x k",
        "K": "h x k*",
        "V": "h x v",
        "O": "h v* r",
        "A": "r a",
        "B": "a x",
        "bA": "a",
        "bB": "x",
    },
    products={"QK": "Q h x k, K h y k* -> x y", "VO": "V h x v, O h v* r -> x r"},
    function=paper_block,
)

_RESIDUAL_AXES = {
    "x": free("D"),
    "z": free("D + 1"),
    "w": free("D + 1"),
    "h": permuted("heads"),
    "k": linear("D_k", per="h"),
    "v": linear("D_v", per="h"),
    "a": permuted("D_A"),
}
_RESIDUAL_TENSORS = {
    "Q": "h z k",
    "K": "h z k*",
    "V": "h z v",
    "O": "h v* x",
    "A": "x a",
    "B": "a x",
    "bA": "a",
    "bB": "x",
}
_RESIDUAL_PRODUCTS = {"QK": "Q h z k, K h w k* -> z w", "VO": "V h z v, O h v* x -> z x"}

#: BERT, GPT-2, ViT: the attention writes into the residual stream, whose basis is one for the
#: whole network. Query, key and value biases are the last input row.
RESIDUAL = declare(
    "residual",
    _RESIDUAL_AXES,
    {**_RESIDUAL_TENSORS, "bO": "x"},
    _RESIDUAL_PRODUCTS,
    function=residual_block,
)

#: The same without a bias at the attention's output.
RESIDUAL_NO_BO = declare(
    "residual_no_bo",
    _RESIDUAL_AXES,
    _RESIDUAL_TENSORS,
    _RESIDUAL_PRODUCTS,
    function=residual_block,
)

_GATED_MLP = {"gate": "x a", "up": "x a", "down": "a x"}

#: The Llama family without RoPE: a gated MLP, no biases.
GATED = declare(
    "gated",
    axes={
        "x": free("D"),
        "y": free("D"),
        "h": permuted("heads"),
        "k": linear("D_k", per="h"),
        "v": linear("D_v", per="h"),
        "a": permuted("D_A"),
    },
    tensors={"Q": "h x k", "K": "h x k*", "V": "h x v", "O": "h v* x", **_GATED_MLP},
    products={"QK": "Q h x k, K h y k* -> x y", "VO": "V h y v, O h v* x -> y x"},
    function=gated_block,
)

#: Grouped queries: the heads of a group share a key and a value head, hence one matrix a group;
#: inside each group they have a permutation of their own. The sum over heads makes QK see a
#: group only through the sum of its queries.
GROUPED = declare(
    "grouped",
    axes={
        "x": free("D"),
        "y": free("D"),
        "g": permuted("groups"),
        "m": permuted("heads_per_group", per="g"),
        "k": linear("D_k", per="g"),
        "v": linear("D_v", per="g"),
        "a": permuted("D_A"),
    },
    tensors={"Q": "g m x k", "K": "g x k*", "V": "g x v", "O": "g m v* x", **_GATED_MLP},
    products={"QK": "Q g m x k, K g y k* -> x y", "VO": "V g y v, O g m v* x -> y x"},
    function=grouped_block,
)

#: `RESIDUAL` with ReLU between A and B, where each neuron has a positive scale of its own. For
#: identity, not for layers.
RELU = declare(
    "relu",
    {**_RESIDUAL_AXES, "s": scaled("1", per="a")},
    {**_RESIDUAL_TENSORS, "A": "x a s", "bA": "a s", "B": "a s* x", "bO": "x"},
    _RESIDUAL_PRODUCTS,
)

#: The Llama family as it is: rotary positions, grouped queries, a gated MLP whose linear branch
#: has a nonzero scale for each neuron, and biases (Qwen2) as a last input row, zero where a file
#: has none. For identity, not for layers.
ROTARY = declare(
    "rotary",
    axes={
        "x": free("D"),
        "z": free("D + 1"),
        "g": permuted("groups"),
        "m": permuted("heads_per_group", per="g"),
        "k": rotary("D_k", per="g"),
        "v": linear("D_v", per="g"),
        "a": permuted("D_A"),
        "s": linear("1", per="a"),
    },
    tensors={
        "Q": "g m z k",
        "K": "g z k*",
        "V": "g z v",
        "O": "g m v* x",
        "bO": "x",
        "gate": "z a",
        "up": "z a s",
        "down": "a s* x",
        "bdown": "x",
    },
    products={},
)

#: Shipped declarations that layers can be made for, by name.
BLOCKS = MappingProxyType(
    {block.name: block for block in (PAPER, RESIDUAL, RESIDUAL_NO_BO, GATED, GROUPED)}
)
