"""What LoRA adds to one module, as a declared block: the group is GL(r), the update its product."""

from transformer_nfn.space import declare, free, linear

#: A is stored as "r x" and B as "y r": here both are transposed, so that tokens go from x to y.
#: No tensor is without the axis k, so a layer sees an adapter only through the update A B.
LORA = declare(
    "lora",
    axes={"x": free("D_x"), "y": free("D_y"), "k": linear("rank")},
    tensors={"A": "x k", "B": "k* y"},
    products={"AB": "A x k, B k* y -> x y"},
)
