"""The zoo's nets as one flat row of numbers each, in the order the trainer wants them."""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from math import prod
from types import MappingProxyType
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int64
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from transformer_nfn.space import PAPER, RESIDUAL, BlockSpec, Mlp, NetBatch, ShapeError, WeightBatch

#: Largest sizes of a net: what describes one may come from anywhere, and tensors are laid out one
#: by one.
MOST, MOST_BLOCKS = 2**20, 4096
_Size = Annotated[int, Field(ge=1, le=MOST)]


class Entry(NamedTuple):
    """One tensor inside a flat row: its first number and its shape."""

    offset: int
    shape: tuple[int, ...]


def entries(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Entry]:
    """Lay tensors one after the other."""
    laid, offset = {}, 0
    for name, shape in shapes.items():
        laid[name] = Entry(offset, shape)
        offset += prod(shape)
    return laid


def views(
    flat: Float[Tensor, "n weights"], laid: Mapping[str, Entry]
) -> dict[str, Float[Tensor, "n ..."]]:
    """The tensors of a flat buffer, without copying."""
    return {
        name: flat[:, offset : offset + prod(shape)].view(-1, *shape)
        for name, (offset, shape) in laid.items()
    }


def _trainable(name: str) -> str:
    if name not in TRAINABLE:
        raise ValueError(f"{name!r:.60} is none of the blocks that are trained: {[*TRAINABLE]}")
    return name


#: The blocks that a zoo's nets may have, by name, and such a name in a recipe.
TRAINABLE = MappingProxyType({block.name: block for block in (PAPER, RESIDUAL)})
ZooBlock = Annotated[str, AfterValidator(_trainable)]


class NetShape(BaseModel):
    """Sizes of a zoo net: embedding of p inputs, or none, blocks, and a classifier.

    The paper's net is ``NetShape(tokens=49, inputs=16)``: 18,506 numbers.

    Examples:
        >>> NetShape(tokens=49, inputs=16).size, NetShape(tokens=32, inputs=0, classes=4).size
        (18506, 17764)
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    block: ZooBlock = PAPER.name
    tokens: _Size
    inputs: Annotated[
        int, Field(ge=0, le=MOST)
    ]  # numbers in a patch; 0 for word vectors, which need no embedding
    D: _Size = 32
    heads: _Size = 2
    D_A: _Size = 64
    blocks: Annotated[int, Field(ge=1, le=MOST_BLOCKS)] = 2
    hidden: _Size = 32
    classes: _Size = 10

    @model_validator(mode="after")
    def _divisible(self) -> "NetShape":
        if self.D % self.heads or self.D % 2:
            raise ValueError(f"D={self.D} must be even and a multiple of heads={self.heads}")
        return self

    @property
    def owned(self) -> "NetShape":
        """Itself: its blocks are known, unlike those of a `TensorShape`."""
        return self

    @property
    def head_width(self) -> int:
        """D_k = D_v = D / h."""
        return self.D // self.heads

    @cached_property
    def spec(self) -> BlockSpec:
        """The blocks' declaration with its sizes."""
        width = self.head_width
        return BlockSpec(
            TRAINABLE[self.block], D=self.D, heads=self.heads, D_k=width, D_v=width, D_A=self.D_A
        )

    @cached_property
    def biased(self) -> bool:
        """Whether the attention has biases."""
        return "bO" in self.spec.block.tensors

    @cached_property
    def skip(self) -> bool:
        """Whether there are skip connections."""
        return self.spec.block.halves[0].skip

    @cached_property
    def rectified(self) -> bool:
        """Whether the MLP has ReLU; else it has GELU."""
        mlp = self.spec.block.halves[1].part
        return isinstance(mlp, Mlp) and mlp.homogeneous

    @cached_property
    def trained(self) -> dict[str, Entry]:
        """The flat row of the trainer: Q, K and V of all heads side by side in one matrix."""
        D, D_A = self.D, self.D_A
        shapes: dict[str, tuple[int, ...]] = {}
        if self.inputs:
            shapes |= {"embedding": (self.inputs, D), "embedding_bias": (D,)}
        for number in range(self.blocks):
            block: dict[str, tuple[int, ...]] = {"QKV": (D, 3 * D)}
            if self.biased:
                block |= {"bQKV": (3 * D,)}
            block |= {"O": (D, D)}
            if self.biased:
                block |= {"bO": (D,)}
            block |= {"A": (D, D_A), "bA": (D_A,), "B": (D_A, D), "bB": (D,)}
            shapes |= {f"{name}{number}": shape for name, shape in block.items()}
        shapes |= {"weight1": (D, self.hidden), "bias1": (self.hidden,)}
        shapes |= {"weight2": (self.hidden, self.classes), "bias2": (self.classes,)}
        return entries(shapes)

    @cached_property
    def stored(self) -> dict[str, Entry]:
        """The flat row of files: blocks as `WeightBatch.flat`, then embedding, then classifier."""
        shapes = {
            f"blocks.{number}.{name}": self.spec.shape(name)
            for number in range(self.blocks)
            for name in self.spec.block.tensors
        }
        if self.inputs:
            shapes |= {"embedding.weight": (self.inputs, self.D), "embedding.bias": (self.D,)}
        shapes |= {"classifier.weight1": (self.D, self.hidden), "classifier.bias1": (self.hidden,)}
        shapes |= {
            "classifier.weight2": (self.hidden, self.classes),
            "classifier.bias2": (self.classes,),
        }
        return entries(shapes)

    @property
    def size(self) -> int:
        """Numbers in one net."""
        offset, shape = self.stored["classifier.bias2"]
        return offset + prod(shape)

    def start(
        self, seeds: Sequence[int], scales: Sequence[float], dtype: torch.dtype = torch.float32
    ) -> Float[Tensor, "n weights"]:
        """Initial weights: normal with each net's own scale, truncated at ±2; biases are zero."""
        flat = torch.zeros(len(seeds), self.size, dtype=dtype)
        weights = views(flat, self.trained)
        for row, (seed, scale) in enumerate(zip(seeds, scales, strict=True)):
            generator = torch.Generator().manual_seed(seed)
            for tensor in weights.values():
                if tensor.dim() == 3:  # n in out
                    # Drawn in float32 whatever the dtype, so that both start alike.
                    drawn = torch.empty(tensor.shape[1:])
                    torch.nn.init.trunc_normal_(drawn, std=scale, generator=generator)
                    tensor[row] = drawn
        return flat

    def to_stored(self, flat: Float[Tensor, "n weights"]) -> Float[Tensor, "n weights"]:
        """Rows of the trainer as rows of files."""
        w = views(flat, self.trained)
        h, k = self.heads, self.head_width
        parts: list[Tensor] = []
        for number in range(self.blocks):
            fused = w[f"QKV{number}"]  # n x (3 h k)
            if self.biased:
                fused = torch.cat([fused, w[f"bQKV{number}"].unsqueeze(1)], dim=1)
            q, key, v = fused.reshape(*fused.shape[:2], 3, h, k).permute(
                2, 0, 3, 1, 4
            )  # n h z k each
            block = {"Q": q, "K": key, "V": v, "O": w[f"O{number}"]}
            parts += [
                block[name] if name in block else w[f"{name}{number}"]
                for name in self.spec.block.tensors
            ]
        parts += [w[name] for name in self.trained if name.startswith("embedding")]
        parts += [w[name] for name in ("weight1", "bias1", "weight2", "bias2")]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def to_trained(self, stored: Float[Tensor, "n weights"]) -> Float[Tensor, "n weights"]:
        """Rows of files as rows of the trainer."""
        self._check_width(stored)
        return stored[:, _places(self)]

    def net_batch(self, stored: Float[Tensor, "n weights"]) -> NetBatch:
        """Rows of files as networks; the classifier's and embedding's tensors are views."""
        self._check_width(stored)
        count = self.blocks * self.spec.weights
        w = views(stored, self.stored)
        return NetBatch(
            WeightBatch.from_flat(self.spec, stored[:, :count].unsqueeze(1), self.blocks),
            *(
                {
                    name.removeprefix(f"{part}."): tensor
                    for name, tensor in w.items()
                    if name.startswith(f"{part}.")
                }
                for part in ("embedding", "classifier")
            ),
        )

    def _check_width(self, stored: Float[Tensor, "n weights"]) -> None:
        if stored.shape[1] != self.size:
            raise ShapeError(f"a net of {self} has {self.size} numbers, got {stored.shape[1]}")


@lru_cache(maxsize=8)  # not in the shape, which is compared, and sent to workers
def _places(shape: NetShape) -> Int64[Tensor, " weights"]:
    """Where in a row of files each number of a row of the trainer is."""
    numbers = torch.arange(shape.size, dtype=torch.float64)  # exact up to 2^53
    return shape.to_stored(numbers.unsqueeze(0)).squeeze(0).long().argsort()
