"""A rival that reads weights as a text: tokens of numbers, and a transformer over them."""

from math import prod
from typing import Annotated, Any

import torch
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.layers import seeded_linear
from transformer_nfn.models.parts import WeightModel, own_weights, seeded_generator
from transformer_nfn.space import NetBatch, ShapeError

_Size = Annotated[int, Field(ge=1)]

#: Deviation of initial positions: about that of an embedded token of numbers with deviation 1.
_POSITION = 0.5


class TokenNetConfig(BaseModel):
    """The shape of a `TokenNet`.

    Attributes:
        tensors: Shapes of a network's tensors; the first axis counts its blocks, and is 1 for what
            is in no block.
        numbers: In a token.
        width: Of the encoder.
        heads: Of its attention.
        layers: How many it has.
        hidden: Width of its MLPs.
        seed: Of the initial parameters; None draws them from torch's global generator.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensors: dict[str, Annotated[tuple[_Size, ...], Field(min_length=1)]] = Field(min_length=1)
    numbers: int = Field(default=128, ge=1)
    width: int = Field(default=64, ge=1)
    heads: int = Field(default=4, ge=1)
    layers: int = Field(default=2, ge=1, le=32)
    hidden: int = Field(default=128, ge=1)
    seed: int | None = None

    @staticmethod
    def of(net: NetBatch, **settings: Any) -> "TokenNetConfig":
        """A config for networks like these."""
        shapes = {name: tuple(tensor.shape[1:]) for name, tensor in _tensors(net).items()}
        return TokenNetConfig(tensors=shapes, **settings)

    @model_validator(mode="after")
    def _divisible(self) -> "TokenNetConfig":
        if self.width % self.heads:
            raise ValueError(f"width={self.width} must be a multiple of heads={self.heads}")
        return self

    def places(self, name: str) -> int:
        """How many tokens one tensor of one block makes."""
        rows, length = _rows(self.tensors[name])
        if length > self.numbers:
            return rows * -(-length // self.numbers)
        return -(-rows // (self.numbers // length))


class TokenNet(WeightModel):
    """The weights as a sequence of tokens, a transformer encoder over them, their mean, a head.

    After SANE (Schürholt, Mahoney and Borth, "Towards Scalable and Versatile Weight Space
    Learning", ICML 2024), written from the paper, and not all of it: SANE aligns the networks and
    trains an encoder without labels, by reconstruction and contrast. This is the encoder alone,
    trained on the labels. Rows of the zoo's matrices are short, so a token has several of them.

    A token is as many whole rows of a tensor as it has room for, or a part of a longer row, with
    zeros behind; its position says which tensor, which block, and where in the tensor. No symmetry
    is built in: other weights of the same function give another number.

    Examples:
        >>> from transformer_nfn.models import TokenNet, TokenNetConfig
        >>> shapes = {"blocks.A": (2, 32, 64), "classifier.bias2": (1, 10)}
        >>> model = TokenNet(TokenNetConfig(tensors=shapes))
        >>> model.token_count, model.parameter_count
        (33, 76033)

    Args:
        config: Its shape.
    """

    config: TokenNetConfig

    def __init__(self, config: TokenNetConfig) -> None:
        super().__init__()
        self.config = config
        generator = seeded_generator(config.seed)

        def positions(count: int) -> nn.Parameter:
            drawn = torch.randn(count, config.width, generator=generator)
            return nn.Parameter(_POSITION * drawn)

        self.embedding = seeded_linear(config.numbers, config.width, generator)
        self.tensor_positions = positions(len(config.tensors))
        self.block_positions = positions(max(shape[0] for shape in config.tensors.values()))
        self.places = positions(max(map(config.places, config.tensors)))
        self.layers = nn.ModuleList(_EncoderLayer(config, generator) for _ in range(config.layers))
        self.head = seeded_linear(config.width, 1, generator)

    @property
    def token_count(self) -> int:
        """How many tokens a network has."""
        shapes = self.config.tensors
        return sum(shape[0] * self.config.places(name) for name, shape in shapes.items())

    def tokens(self, net: NetBatch) -> Float[Tensor, "n t numbers"]:
        """The numbers of each network, token by token; no parameter takes part in it.

        Raises:
            ShapeError: If the networks have other tensors.
        """
        tensors = _tensors(net)
        found = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        if found != self.config.tensors:
            raise ShapeError(f"the model reads networks of {self.config.tensors}, got {found}")
        cut = [self._cut(name, tensors[name]) for name in self.config.tensors]
        return torch.cat(cut, dim=1)

    def forward(self, net: NetBatch) -> Float[Tensor, " n"]:
        """A logit for each network; the prediction is its sigmoid."""
        states = self.embedding(self.tokens(net)) + self._positions()
        for layer in self.layers:
            states = layer(states)
        out: Tensor = self.head(_normed(states).mean(dim=1))
        return out.squeeze(1)

    def _cut(self, name: str, tensor: Float[Tensor, "n l ..."]) -> Float[Tensor, "n t numbers"]:
        """The tokens of one tensor, block after block."""
        room = self.config.numbers
        count, length = _rows(self.config.tensors[name])
        rows = tensor.reshape(*tensor.shape[:2], count, length)
        if length > room:
            rows = F.pad(rows, (0, -length % room))
        else:
            together = room // length
            rows = F.pad(rows, (0, 0, 0, -count % together))
            rows = rows.reshape(*tensor.shape[:2], self.config.places(name), together * length)
            rows = F.pad(rows, (0, room - together * length))
        return rows.reshape(len(tensor), tensor.shape[1] * self.config.places(name), room)

    def _positions(self) -> Float[Tensor, "t width"]:
        """Of all tokens, in their order."""
        parts = []
        for (name, shape), which in zip(
            self.config.tensors.items(), self.tensor_positions, strict=True
        ):
            blocks = self.block_positions[: shape[0]].unsqueeze(1)
            parts.append((which + blocks + self.places[: self.config.places(name)]).flatten(0, 1))
        return torch.cat(parts)


class _EncoderLayer(nn.Module):
    """Attention and an MLP, each added to what it read after a norm.

    The norms learn nothing: a linear layer reads each of them.
    """

    def __init__(self, config: TokenNetConfig, generator: torch.Generator | None) -> None:
        super().__init__()
        self.heads = config.heads
        self.reads = seeded_linear(config.width, 3 * config.width, generator)
        self.writes = seeded_linear(config.width, config.width, generator)
        self.first = seeded_linear(config.width, config.hidden, generator)
        self.second = seeded_linear(config.hidden, config.width, generator)

    def forward(self, states: Float[Tensor, "n t width"]) -> Float[Tensor, "n t width"]:
        each = states.shape[2] // self.heads
        read = self.reads(_normed(states)).unflatten(2, (3, self.heads, each))
        queries, keys, values = read.permute(2, 0, 3, 1, 4)  # each n h t e
        attention = (each**-0.5 * queries @ keys.mT).softmax(dim=-1)
        states = states + self.writes((attention @ values).transpose(1, 2).flatten(2))
        out: Tensor = states + self.second(F.gelu(self.first(_normed(states))))
        return out


def _normed(states: Float[Tensor, "n t width"]) -> Float[Tensor, "n t width"]:
    return F.layer_norm(states, states.shape[-1:])


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows of a tensor in one block, and the numbers in each."""
    return prod(shape[1:-1]), shape[-1] if len(shape) > 1 else 1


def _tensors(net: NetBatch) -> dict[str, Float[Tensor, "n l ..."]]:
    """All tensors of networks by name; what is in no block is as if in the first."""
    blocks = own_weights(net).blocks.tensors
    tensors = {f"blocks.{name}": tensor[:, 0] for name, tensor in blocks.items()}
    for part in ("embedding", "classifier"):
        outside: dict[str, Tensor] = getattr(net, part)
        tensors |= {f"{part}.{name}": tensor.unsqueeze(1) for name, tensor in outside.items()}
    return tensors
