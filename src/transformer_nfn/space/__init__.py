"""Weight spaces: axes, block declarations, batches of weights, and what a block computes."""

from transformer_nfn.space.axes import (
    GLOSSARY,
    RESERVED,
    Axis,
    Index,
    Kind,
    free,
    linear,
    parse_indices,
    permuted,
    rotary,
    scaled,
)
from transformer_nfn.space.balancing import Balanced, balance
from transformer_nfn.space.block import Block, BlockFunction, Factor, Product, declare
from transformer_nfn.space.blocks import (
    BLOCKS,
    GATED,
    GROUPED,
    PAPER,
    RELU,
    RESIDUAL,
    RESIDUAL_NO_BO,
    ROTARY,
)
from transformer_nfn.space.errors import DeclarationError, ShapeError
from transformer_nfn.space.functions import layer_norm, multi_head, rms_norm, sine_positions
from transformer_nfn.space.net import NetBatch, apply_blocks, apply_net, apply_paper_net
from transformer_nfn.space.rowview import RowView
from transformer_nfn.space.spec import BlockSpec
from transformer_nfn.space.weights import WeightBatch

__all__ = [
    "BLOCKS",
    "GATED",
    "GLOSSARY",
    "GROUPED",
    "PAPER",
    "RELU",
    "RESERVED",
    "RESIDUAL",
    "RESIDUAL_NO_BO",
    "ROTARY",
    "Axis",
    "Balanced",
    "Block",
    "BlockFunction",
    "BlockSpec",
    "DeclarationError",
    "Factor",
    "Index",
    "Kind",
    "NetBatch",
    "Product",
    "RowView",
    "ShapeError",
    "WeightBatch",
    "apply_blocks",
    "apply_net",
    "apply_paper_net",
    "balance",
    "declare",
    "free",
    "layer_norm",
    "linear",
    "multi_head",
    "parse_indices",
    "permuted",
    "rms_norm",
    "rotary",
    "scaled",
    "sine_positions",
]
