"""What makes tokens of the inputs before the first block, step by step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.space.functions import layer_norm, sine_positions


class Inputs(Enum):
    """What a network is given."""

    WORDS = "token ids, s t; with token types s 2 t"
    IMAGES = "images, s c p q"
    VECTORS = "a vector for each token, s t p"
    SOUND = "spectrograms, s m f"


@runtime_checkable
class Stored(Protocol):
    """Tensors of a file by the names that parts have for them."""

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""

    def read(self, name: str) -> Tensor:
        """A whole tensor."""

    def slice(self, name: str, first: int, last: int) -> Tensor:
        """Some rows of a tensor."""

    def rows(self, name: str, numbers: list[int]) -> Tensor:
        """Rows by their numbers."""

    def setting(self, name: str, default: Any) -> Any:
        """A setting of the function that only some networks have."""


class Embedding(ABC):
    """One step: it makes tokens, or adds to those that are there."""

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, str]:
        """Names of its tensors and their axes on disk; `x` is the stream."""

    @property
    def inner(self) -> tuple[str, ...]:
        """Names of tensors of its own that do not touch the stream."""
        return ()

    @property
    def inputs(self) -> Inputs | None:
        """What it reads; None if that is for the first step to say."""
        return None

    @property
    def holds_stream(self) -> bool:
        """Whether an activation stands between its tensors and the stream, and holds the axes."""
        return False

    @abstractmethod
    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """The tokens after it, "s t x", float64.

        Args:
            tokens: Those before it; None before the first step.
            inputs: What the network is given.
            stored: Its tensors.
        """


def token_ids(inputs: Tensor) -> Int[Tensor, "s t"]:
    """Token ids, where there may be token types beside them."""
    return inputs[:, 0] if inputs.dim() == 3 else inputs


@dataclass(frozen=True)
class Table(Embedding):
    """A tensor with a row for each word, position or type.

    Attributes:
        name: The table.
        outer: Its rows are of the stream, not of another size that something makes the stream of.
    """

    name: str
    outer: bool = field(default=True, kw_only=True)

    @property
    def tensors(self) -> Mapping[str, str]:
        """The table."""
        return {self.name: "t x"} if self.outer else {}

    @property
    def inner(self) -> tuple[str, ...]:
        """The table, where it is not of the stream."""
        return () if self.outer else (self.name,)


@dataclass(frozen=True)
class Words(Table):
    """A row of a table for each word."""

    @property
    def inputs(self) -> Inputs:
        """Words."""
        return Inputs.WORDS

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """Each row that occurs is read once, or all of them if that is less work."""
        ids = token_ids(inputs)
        found, place = ids.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        if 4 * len(found) >= stored.shape(self.name)[0]:
            return stored.read(self.name).double()[ids]
        return stored.rows(self.name, found.tolist()).double()[place]


@dataclass(frozen=True)
class Scaled(Embedding):
    """All tokens so far times a number.

    Attributes:
        setting: What config.json calls it; the root of the stream's size if None.
    """

    setting: str | None = None

    @property
    def tensors(self) -> Mapping[str, str]:
        """None."""
        return {}

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """They are multiplied."""
        assert tokens is not None
        if self.setting is None:
            return tokens * torch.tensor(tokens.shape[-1], dtype=torch.float64).sqrt()
        return tokens * float(stored.setting(self.setting, 1.0))


@dataclass(frozen=True)
class Positions(Table):
    """A row of a table for each position of a sequence.

    Attributes:
        first: The row of the first position.
        padding: Words of this number, the default of a setting `pad_token_id`, have no position:
            they are not counted and have the row of their own number. None: all are counted.
    """

    first: int = 0
    padding: int | None = None

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """The rows of the positions are added."""
        assert tokens is not None
        first = self.first_row(stored)
        if self.padding is None:
            return tokens + stored.slice(self.name, first, first + tokens.shape[1]).double()
        counted = token_ids(inputs) != first - 1
        return tokens + stored.read(self.name).double()[counted.cumsum(1) * counted + first - 1]

    def first_row(self, stored: Stored) -> int:
        """The row of the first position in a file."""
        if self.padding is None:
            return self.first
        return 1 + int(stored.setting("pad_token_id", self.padding))


@dataclass(frozen=True)
class TokenTypes(Table):
    """A row of a table for each type of a token."""

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """Rows of the types are added; of the first type where none are given."""
        assert tokens is not None
        types = inputs[:, 1] if inputs.dim() == 3 else torch.zeros((), dtype=torch.long)
        return tokens + stored.read(self.name).double()[types]


@dataclass(frozen=True)
class Widened(Embedding):
    """A LayerNorm of tokens of another size, and a linear map of them into the stream.

    Attributes:
        norm: The norm.
        linear: The map.
        eps: Of the norm.
    """

    norm: str
    linear: str
    eps: float

    @property
    def tensors(self) -> Mapping[str, str]:
        """The map and its bias."""
        return {f"{self.linear}.weight": "x e", f"{self.linear}.bias": "x"}

    @property
    def inner(self) -> tuple[str, ...]:
        """Scale and shift of the norm."""
        return f"{self.norm}.weight", f"{self.norm}.bias"

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """(γ n + β) Wᵀ + b."""
        assert tokens is not None
        scale, shift = (stored.read(name).double() for name in self.inner)
        weight, bias = (stored.read(name).double() for name in self.tensors)
        return (layer_norm(tokens, self.eps) * scale + shift) @ weight.T + bias


@dataclass(frozen=True)
class Patches(Embedding):
    """A convolution whose steps are as long as its kernel: a token for each patch of an image."""

    weight: str
    bias: str | None = None

    @property
    def tensors(self) -> Mapping[str, str]:
        """Kernel and bias."""
        return {self.weight: "x p q r"} | ({self.bias: "x"} if self.bias else {})

    @property
    def inputs(self) -> Inputs:
        """Images."""
        return Inputs.IMAGES

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """Patches from left to right, row by row."""
        weight = stored.read(self.weight).double()
        bias = stored.read(self.bias).double() if self.bias else None
        made = F.conv2d(inputs.double(), weight, bias, stride=weight.shape[-1])
        return made.flatten(2).transpose(1, 2)


@dataclass(frozen=True)
class Sound(Embedding):
    """Two convolutions of three steps, each with a GELU: a token for each two frames of a sound.

    Attributes:
        first: The convolution that reads the frames.
        second: The one that goes in steps of two.
    """

    first: str
    second: str

    @property
    def tensors(self) -> Mapping[str, str]:
        """None: the stream is what an activation makes of them."""
        return {}

    @property
    def inner(self) -> tuple[str, ...]:
        """Kernels and biases."""
        return tuple(
            f"{c}.{part}" for c in (self.first, self.second) for part in ("weight", "bias")
        )

    @property
    def inputs(self) -> Inputs:
        """Sound."""
        return Inputs.SOUND

    @property
    def holds_stream(self) -> bool:
        """The second GELU does."""
        return True

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """Frames in the order of time."""
        kernel, shift, second, last = (stored.read(name).double() for name in self.inner)
        hidden = F.gelu(F.conv1d(inputs.double(), kernel, shift, padding=1))
        return F.gelu(F.conv1d(hidden, second, last, stride=2, padding=1)).transpose(1, 2)


@dataclass(frozen=True)
class ClassToken(Embedding):
    """One token more, the first.

    Attributes:
        name: The tensor.
        axes: On disk.
    """

    name: str
    axes: str = "p q x"

    @property
    def tensors(self) -> Mapping[str, str]:
        """The token."""
        return {self.name: self.axes}

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """It stands before the others."""
        assert tokens is not None
        first = stored.read(self.name).double().view(1, 1, -1).expand(len(tokens), -1, -1)
        return torch.cat([first, tokens], dim=1)


@dataclass(frozen=True)
class PatchPositions(Embedding):
    """A vector for each place of an image, for all places of one size of images."""

    name: str

    @property
    def tensors(self) -> Mapping[str, str]:
        """The vectors."""
        return {self.name: "p q x"}

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """They are added."""
        assert tokens is not None
        return tokens + stored.read(self.name).double()


@dataclass(frozen=True)
class Projection(Embedding):
    """A linear map of the vector of each token; where a file has none, vectors are tokens."""

    weight: str
    bias: str

    @property
    def tensors(self) -> Mapping[str, str]:
        """Matrix and bias."""
        return {self.weight: "t x", self.bias: "x"}

    @property
    def inputs(self) -> Inputs:
        """Vectors."""
        return Inputs.VECTORS

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """X W + b."""
        if self.weight not in stored:
            return inputs.double()
        return inputs.double() @ stored.read(self.weight).double() + stored.read(self.bias).double()


@dataclass(frozen=True)
class Vectors(Embedding):
    """The inputs are the tokens."""

    @property
    def tensors(self) -> Mapping[str, str]:
        """None."""
        return {}

    @property
    def inputs(self) -> Inputs:
        """Vectors."""
        return Inputs.VECTORS

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """As they are."""
        return inputs.double()


@dataclass(frozen=True)
class FixedPositions(Embedding):
    """Sines and cosines, which no file holds."""

    @property
    def tensors(self) -> Mapping[str, str]:
        """None."""
        return {}

    def __call__(self, tokens: Tensor | None, inputs: Tensor, stored: Stored) -> Tensor:
        """They are added."""
        assert tokens is not None
        return tokens + sine_positions(*tokens.shape[1:]).double()
