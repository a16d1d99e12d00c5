"""State dicts of people's own networks as batches: where each tensor of a block stands."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.space.block import Block, compose
from transformer_nfn.space.blocks import RESIDUAL
from transformer_nfn.space.errors import ShapeError
from transformer_nfn.space.folding import NormChoice, Norms, check_choice, fold_norms, keep_norms
from transformer_nfn.space.parts.activations import ACTIVATIONS
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.half import Half, NormPlace
from transformer_nfn.space.parts.mlp import Mlp
from transformer_nfn.space.spec import BlockSpec
from transformer_nfn.space.weights import WeightBatch

StateDict = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The names that a state dict has for the tensors of a block of attention and MLP.

    Each is what stands before ``weight`` and ``bias``; Linear layers are stored as [out, in].

    Attributes:
        block: Before all names of a block, with ``{}`` for its number.
        qkv: Queries, keys and values, one below the other in one matrix, or three names.
        output: The attention's output.
        first: Into the hidden neurons.
        second: Out of them.
        norms: Of the attention and of the MLP.
    """

    block: str
    qkv: str | tuple[str, str, str]
    output: str
    first: str
    second: str
    norms: tuple[str, str]

    def read(
        self,
        state: StateDict,
        *,
        heads: int,
        activation: str,
        post_norm: bool,
        norms: NormChoice = "fold",
        prefix: str = "",
        dtype: torch.dtype = torch.float32,
    ) -> WeightBatch:
        """The blocks of one network; the arguments are those of `NetBatch.from_state_dicts`.

        Raises:
            ShapeError: If tensors are missing, have other shapes, or belong to a block and are
                none of those that the layout names.
        """
        check_choice(norms)
        if type(heads) is not int or heads < 1:
            raise ShapeError(f"heads is how many an attention has, not {heads!r:.40}")
        if activation not in ACTIVATIONS:
            raise ShapeError(
                f"the activation is one of {', '.join(ACTIVATIONS)}, not {activation!r:.40}"
            )
        if not isinstance(state, Mapping):
            raise ShapeError(f"a state dict has tensors by name, not {type(state).__name__}")
        blocks = self._count(state, prefix)
        found = _Found(state, dtype)
        each = [self._block(found, prefix + self.block.format(i), heads) for i in range(blocks)]
        self._check_all_read(state, found.read, prefix)
        tensors = {
            name: torch.stack([one[name] for one in each])[None, None] for name in each[0]
        }  # n c l axes
        D, D_A = tensors["A"].shape[-2:]
        width = tensors["Q"].shape[-1]
        spec = BlockSpec(
            _residual(activation, post_norm), D=D, heads=heads, D_k=width, D_v=width, D_A=D_A
        )
        scales = [
            Norms(*(tensors.pop(f"{kind}{half}")[:, 0] for kind in ("scale", "shift")))
            for half in (1, 2)
        ]
        batch = WeightBatch(spec, tensors)
        if norms == "fold":
            return fold_norms(batch, scales)
        return keep_norms(batch, scales) if norms == "keep" else batch

    def _numbers(self, state: StateDict, prefix: str) -> dict[str, int]:
        """Of each tensor that belongs to a block the number of that block."""
        before, after = (re.escape(part) for part in self.block.split("{}"))
        pattern = re.compile(rf"{re.escape(prefix)}{before}(\d+){after}")
        found = {name: pattern.match(name) for name in state}
        return {name: int(match[1]) for name, match in found.items() if match}

    def _count(self, state: StateDict, prefix: str) -> int:
        numbers = sorted(set(self._numbers(state, prefix).values()))
        if not numbers:
            some = ", ".join(list(state)[:4])
            raise ShapeError(
                f"there is no {prefix + self.block.format(0)!r}…; the state dict has {some}, …: "
                f"give the layout of its names, or prefix= if they stand behind one"
            )
        if numbers != list(range(len(numbers))):
            raise ShapeError(f"its blocks have the numbers {numbers}, expected 0, 1, 2, …")
        return len(numbers)

    def _block(self, found: "_Found", at: str, heads: int) -> dict[str, Tensor]:
        output, bias_out = found.linear(at + self.output)
        D = output.shape[0]
        if output.shape != (D, D) or D % heads:
            raise ShapeError(
                f"{at}{self.output}weight is {tuple(output.shape)}, which is no square of {heads} "
                f"heads; is heads= right?"
            )
        if isinstance(self.qkv, str):
            weight, bias = found.linear(at + self.qkv, (3 * D, D), fused=True)
            weights, biases = weight.chunk(3), bias.chunk(3)
        else:
            pairs = [found.linear(at + name, (D, D)) for name in self.qkv]
            weights, biases = tuple(w for w, _ in pairs), tuple(b for _, b in pairs)
        first, bias_first = found.linear(at + self.first)
        second, bias_second = found.linear(at + self.second, (D, len(first)))
        if first.shape[1] != D:
            raise ShapeError(f"{at}{self.first}weight is {tuple(first.shape)}, and D is {D}")
        (scale1, shift1), (scale2, shift2) = (found.norm(at + name, D) for name in self.norms)
        Q, K, V = (_heads(w, b, heads) for w, b in zip(weights, biases, strict=True))
        return {
            "Q": Q,
            "K": K,
            "V": V,
            "O": output.T.reshape(heads, D // heads, D),  # h v x
            "A": first.T,
            "B": second.T,
            "bB": bias_second,
            "bA": bias_first,
            "bO": bias_out,
            "scale1": scale1,
            "shift1": shift1,
            "scale2": scale2,
            "shift2": shift2,
        }

    def _check_all_read(self, state: StateDict, read: set[str], prefix: str) -> None:
        """What belongs to a block and is not read would be left out without a word."""
        if left := [name for name in self._numbers(state, prefix) if name not in read]:
            raise ShapeError(
                f"{left[0]!r} belongs to a block, and the layout does not say what it is; "
                f"declare such a block yourself (docs/understand/blocks.md)"
            )


#: `torch.nn.TransformerEncoder`, and `timm`'s ViT.
TORCH_ENCODER = Layout(
    block="layers.{}.",
    qkv="self_attn.in_proj_",
    output="self_attn.out_proj.",
    first="linear1.",
    second="linear2.",
    norms=("norm1.", "norm2."),
)
TIMM_VIT = Layout(
    block="blocks.{}.",
    qkv="attn.qkv.",
    output="attn.proj.",
    first="mlp.fc1.",
    second="mlp.fc2.",
    norms=("norm1.", "norm2."),
)


def plain_numbers(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor of a state dict as a tensor of a batch."""
    if not tensor.is_floating_point() or tensor.is_meta:
        what = "on meta, without numbers" if tensor.is_meta else f"{tensor.dtype}"
        raise ShapeError(f"{name} is {what}; weights are floating-point numbers")
    return tensor.detach().to("cpu", dtype)


class _Found:
    """A state dict, and which of its tensors were read."""

    def __init__(self, state: StateDict, dtype: torch.dtype) -> None:
        self._state, self._dtype = state, dtype
        self.read: set[str] = set()

    def linear(
        self, name: str, shape: tuple[int, int] | None = None, *, fused: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Weight and bias, 0 where there is none."""
        weight = self._one(f"{name}weight")
        if weight is None:
            raise ShapeError(f"there is no {name}weight in the state dict")
        if weight.dim() != 2 or (shape is not None and weight.shape != shape):
            raise ShapeError(
                f"{name}weight is {tuple(weight.shape)}, expected {shape or 'a matrix'}"
                f"{': queries, keys and values of the same widths' if fused else ''}"
            )
        bias = self._one(f"{name}bias")
        return weight, weight.new_zeros(len(weight)) if bias is None else bias

    def norm(self, name: str, width: int) -> tuple[Tensor, Tensor]:
        """Scale and shift, 1 and 0 where there is none."""
        scale, shift = self._one(f"{name}weight"), self._one(f"{name}bias")
        ones = torch.ones(width, dtype=self._dtype)
        return ones if scale is None else scale, torch.zeros_like(ones) if shift is None else shift

    def _one(self, name: str) -> Tensor | None:
        if name not in self._state:
            return None
        self.read.add(name)
        return plain_numbers(name, self._state[name], self._dtype)


def _heads(
    weight: Float[Tensor, "o x"], bias: Float[Tensor, " o"], heads: int
) -> Float[Tensor, "h z k"]:
    """Each head's matrix from rows of the stream, the bias as its last row."""
    rows = torch.cat([weight.T, bias.unsqueeze(0)])  # z (h k)
    return rows.view(len(rows), heads, len(weight) // heads).transpose(0, 1)


def _residual(activation: str, post_norm: bool) -> Block:
    """Attention and an MLP on a stream; its tables are those of RESIDUAL."""
    place = NormPlace.AFTER_SUM if post_norm else NormPlace.BEFORE
    halves = (Half(Attention(), "layer", place), Half(Mlp(activation), "layer", place))
    return compose(RESIDUAL.name, *halves)


class Encoder(NamedTuple):
    """What a `torch.nn.TransformerEncoder` says of itself, beside its state dict."""

    heads: int
    activation: str
    post_norm: bool
    prefix: str


def find_encoder(module: nn.Module) -> Encoder:
    """The one encoder that a module is or has, with layers that are all alike."""
    parts = module.named_modules()
    found = [(name, part) for name, part in parts if isinstance(part, nn.TransformerEncoder)]
    if len(found) != 1:
        raise ShapeError(
            f"{type(module).__name__} has {len(found)} torch.nn.TransformerEncoder, expected one; "
            f"use NetBatch.from_state_dicts with a layout and a prefix"
        )
    name, encoder = found[0]
    prefix = f"{name}." if name else ""
    read = [_layer(f"{prefix}layers.{i}", layer) for i, layer in enumerate(encoder.layers)]
    for number, one in enumerate(read):
        if one != read[0]:
            raise ShapeError(f"{prefix}layers.{number} has {one}, {prefix}layers.0 has {read[0]}")
    return read[0]._replace(prefix=prefix)


def _layer(name: str, layer: nn.Module) -> Encoder:
    """Refuses what the tensors of a layer do not show."""
    if type(layer) is not nn.TransformerEncoderLayer:
        raise ShapeError(
            f"{name} is a {type(layer).__name__}, which may compute something else than "
            f"torch.nn.TransformerEncoderLayer; use NetBatch.from_state_dicts if it does not"
        )
    if layer.self_attn.add_zero_attn:
        raise ShapeError(f"{name} has add_zero_attn, which no block has")
    for norm in (layer.norm1, layer.norm2):
        if type(norm) is not nn.LayerNorm:
            raise ShapeError(f"{name} has a {type(norm).__name__} where a LayerNorm is expected")
    activation = layer.activation
    if activation is F.relu or type(activation) is nn.ReLU:
        name_of = "relu"
    elif activation is F.gelu or type(activation) is nn.GELU:
        tanh = getattr(activation, "approximate", "none") == "tanh"
        name_of = "gelu_new" if tanh else "gelu"
    else:
        raise ShapeError(
            f"{name} has the activation {activation!r:.60}, and relu and gelu are known; use "
            f"NetBatch.from_state_dicts(…, activation=…)"
        )
    return Encoder(layer.self_attn.num_heads, name_of, not layer.norm_first, "")


def check_alike(first: WeightBatch, batch: WeightBatch) -> None:
    """Refuse a network that is not of the shape of the first one."""
    if (batch.spec, batch.blocks) != (first.spec, first.blocks):
        raise ShapeError(
            f"it has {batch.blocks} blocks of {batch.spec}, network 0 {first.blocks} of "
            f"{first.spec}: only networks of one shape are a batch"
        )
