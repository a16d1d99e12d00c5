"""Weight spaces: axes, block declarations, batches of weights, and what a block computes."""

from transformer_nfn.space.axes import (
    GLOSSARY,
    RESERVED,
    Axis,
    Index,
    Kind,
    StreamKind,
    free,
    linear,
    parse_indices,
    permuted,
    rotary,
    scaled,
    signed,
)
from transformer_nfn.space.axisview import AxisView
from transformer_nfn.space.balancing import Balanced, balance
from transformer_nfn.space.block import Block, BlockFunction, Factor, Product, compose, declare
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
from transformer_nfn.space.container import Container, Picks, picked_networks
from transformer_nfn.space.errors import DeclarationError, ShapeError, UnknownFunctionError
from transformer_nfn.space.folding import (
    NormChoice,
    Norms,
    check_choice,
    fold_norms,
    join_bias,
    keep_norms,
    split_bias,
)
from transformer_nfn.space.functions import layer_norm, rms_norm, sine_positions
from transformer_nfn.space.layering import for_layers
from transformer_nfn.space.layouts import TIMM_VIT, TORCH_ENCODER, Layout
from transformer_nfn.space.net import NetBatch, apply_blocks, apply_net, apply_paper_net
from transformer_nfn.space.parts.activations import ACTIVATIONS
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.cross import CrossAttention
from transformer_nfn.space.parts.embedding import (
    ClassToken,
    Embedding,
    FixedPositions,
    Inputs,
    Patches,
    PatchPositions,
    Positions,
    Projection,
    Scaled,
    Sound,
    Table,
    TokenTypes,
    Vectors,
    Widened,
    Words,
)
from transformer_nfn.space.parts.experts import Experts
from transformer_nfn.space.parts.half import Half, NormPlace
from transformer_nfn.space.parts.mlp import GatedMlp, Mlp, unit_neurons
from transformer_nfn.space.parts.part import Part, Unit
from transformer_nfn.space.parts.rotary import Rope
from transformer_nfn.space.spec import BlockSpec
from transformer_nfn.space.weights import WeightBatch

__all__ = [
    "ACTIVATIONS",
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
    "TIMM_VIT",
    "TORCH_ENCODER",
    "Attention",
    "Axis",
    "AxisView",
    "Balanced",
    "Block",
    "BlockFunction",
    "BlockSpec",
    "ClassToken",
    "Container",
    "CrossAttention",
    "DeclarationError",
    "Embedding",
    "Experts",
    "Factor",
    "FixedPositions",
    "GatedMlp",
    "Half",
    "Index",
    "Inputs",
    "Kind",
    "Layout",
    "Mlp",
    "NetBatch",
    "NormChoice",
    "NormPlace",
    "Norms",
    "Part",
    "PatchPositions",
    "Patches",
    "Picks",
    "Positions",
    "Product",
    "Projection",
    "Rope",
    "Scaled",
    "ShapeError",
    "Sound",
    "StreamKind",
    "Table",
    "TokenTypes",
    "Unit",
    "UnknownFunctionError",
    "Vectors",
    "WeightBatch",
    "Widened",
    "Words",
    "apply_blocks",
    "apply_net",
    "apply_paper_net",
    "balance",
    "check_choice",
    "compose",
    "declare",
    "fold_norms",
    "for_layers",
    "free",
    "join_bias",
    "keep_norms",
    "layer_norm",
    "linear",
    "parse_indices",
    "permuted",
    "picked_networks",
    "rms_norm",
    "rotary",
    "scaled",
    "signed",
    "sine_positions",
    "split_bias",
    "unit_neurons",
]
