"""Weights of a block that is declared for identity, as layers take them."""

from dataclasses import replace

from transformer_nfn.space.block import Block, compose, declare
from transformer_nfn.space.blocks import BLOCKS
from transformer_nfn.space.errors import DeclarationError, ShapeError
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.half import Half
from transformer_nfn.space.parts.mlp import GatedMlp, Mlp
from transformer_nfn.space.spec import BlockSpec
from transformer_nfn.space.weights import WeightBatch


def for_layers(batch: WeightBatch, *, biases: bool = True) -> WeightBatch:
    """The same numbers under a declaration that has layers: RELU as RESIDUAL, ROTARY as GROUPED.

    What the block computes is not known afterwards. Layers know free, permuted and linear axes. So
    rotary axes are declared linear, and scales of single neurons are left out. The first is a
    larger group, and a layer that is equivariant under it is so under every part of it. To scales
    of neurons the layers are not invariant.

    Examples:
        >>> from transformer_nfn.space import RELU, BlockSpec, WeightBatch, for_layers
        >>> spec = BlockSpec(RELU, D=4, heads=2, D_k=2, D_v=2, D_A=5)
        >>> for_layers(WeightBatch.random(spec, networks=3)).spec
        BlockSpec(residual, D=4, heads=2, D_k=2, D_v=2, D_A=5)

    Args:
        batch: Of a block that is composed of parts.
        biases: Whether its biases come along; without them a Llama is a GROUPED block.

    Raises:
        DeclarationError: If no layers can be derived, or the block is not made of known parts.
        ShapeError: If biases are left out that are not 0.
    """
    block = _layered(batch.spec.block, biases)
    wanted = {axis.symbol for axis in block.axes.values() if axis.symbol}
    sizes = {symbol: size for symbol, size in batch.spec.sizes.items() if symbol in wanted}
    spec = BlockSpec(block, **sizes)
    tensors = {}
    for name, tensor in batch.tensors.items():
        left_out = tensor
        if name in block.tensors:
            own, new = batch.spec.block.tensors[name], spec.shape(name)
            labels = {index.label for index in block.tensors[name]}
            kept = tensor
            for dim, index in enumerate(own, start=3):
                if index.label == "z" and "z" not in labels:  # the bias row, which is the last
                    left_out = kept.narrow(dim, kept.shape[dim] - 1, 1)
                    kept = kept.narrow(dim, 0, kept.shape[dim] - 1)
            tensors[name] = kept.reshape(*tensor.shape[:3], *new)
            if kept is tensor:
                continue
        if left_out.any():
            raise ShapeError(f"{name} has biases that are not 0; leave biases=True")
    return WeightBatch(spec, tensors)


def _layered(block: Block, biases: bool) -> Block:
    if not block.halves:
        if block.layered and biases:
            return block
        raise DeclarationError(
            f"block {block.name!r} is not made of parts; declare one with free, permuted and "
            f"linear axes and give its tensors as they are"
        )
    halves = [replace(half, part=_part(block, half, biases)) for half in block.halves]
    made = compose(block.name, *halves, parallel=block.parallel)
    if not made.layered:
        raise DeclarationError(f"block {block.name!r} has parts that no layer can be derived for")
    tables = made.tables()
    name = f"{block.name}_for_layers"
    for shipped in BLOCKS.values():
        if shipped.has_tables_of(made):
            name = shipped.name
    parts = (made.axes, tables["tensors"], tables["products"])
    if made.has_tables_of(block):  # it had layers all along
        return declare(name, *parts, block.function, block.halves, block.parallel)
    # Without a function: what the block computes is not what such parts would.
    return declare(name, *parts)


def _part(block: Block, half: Half, biases: bool) -> Attention | Mlp | GatedMlp:
    part = half.part
    if isinstance(part, Attention) and type(part) is Attention and not part.normed:
        bias_row, output_bias = part.bias_row and biases, part.output_bias and biases
        return replace(
            part,
            rotary=False,
            rope=None,
            local_rope=None,
            bias_row=bias_row,
            output_bias=output_bias,
        )
    if isinstance(part, GatedMlp):
        return replace(part, scales=False, bias_row=part.bias_row and biases)
    if isinstance(part, Mlp):
        return replace(part, scales=False)
    raise DeclarationError(
        f"block {block.name!r} has {type(part).__name__}"
        f"{' with norms of queries and keys' if isinstance(part, Attention) else ''}, for which "
        f"there are no layers"
    )
