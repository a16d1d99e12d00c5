"""What every part of a block has."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.axes import Axis
from transformer_nfn.space.functions import rms_norm

#: The stream: a model dimension, and the same with a row below for a bias.
STREAM, WITH_BIAS_ROW = "x", "z"
#: A square that others can be divided by is at least this.
TINY = 1e-30

#: Of a field of a part that changes its function, but none of its tables.
FUNCTION_ONLY: Mapping[str, bool] = MappingProxyType({"function only": True})


@dataclass(frozen=True)
class Unit:
    """One kind of what a part's function is made of, in the form that the function sees.

    No symmetry of the part changes that form but for the order of the units, so two networks can be
    compared in it: nothing hides in a factor that is small, or behind a unit that is large.

    Attributes:
        tensors: Those whose numbers it is made of.
        labels: The axes that count the units; none if there is but one.
        factors: Of the part's tensors what each unit reads, "… x k", and if only the product P Rᵀ
            counts the second factor, "… y k". The last axis is summed over.
        pairs: The coordinates (j, j + k/2) are complex numbers, each a product and a unit of its
            own.
        single: A unit is one number, or a few: fewer than the stream has.
        constant: What does not depend on the token: all that a token of zeros sees. If all units of
            the kind are 0 in one network and not in another, a norm may make any size of it.
    """

    tensors: tuple[str, ...]
    labels: tuple[str, ...]
    factors: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]]
    pairs: bool = False
    single: bool = False
    constant: bool = False


def row_unit(tensor: str) -> Unit:
    """The bias of what is written."""
    return Unit((tensor,), (), lambda w: (w[tensor].unsqueeze(-1),), constant=True)


def constant_unit(
    tensors: tuple[str, ...],
    labels: tuple[str, ...],
    factors: Callable[[Mapping[str, Tensor]], tuple[Tensor, ...]],
) -> Unit:
    """A bias that the part reads with, of a head or a neuron."""
    return Unit(tensors, labels, factors, single=True, constant=True)


def number_unit(tensor: str) -> Unit:
    """The numbers of a vector of the stream, each by itself."""
    return Unit((tensor,), (STREAM,), lambda w: (w[tensor][:, None, None],), single=True)


def after_norm(
    written: Float[Tensor, "n *s t x"], gain: Float[Tensor, "n x"], eps: float
) -> Float[Tensor, "n *s t x"]:
    """What is written through an RMSNorm, each coordinate times its gain."""
    return rms_norm(written, eps) * along_stream(gain, written)


def along_stream(
    gain: Float[Tensor, "n x"], tokens: Float[Tensor, "n *s t x"]
) -> Float[Tensor, "n ... x"]:
    """A number for each coordinate of each network, as it broadcasts over tokens."""
    return gain.view(len(gain), *(1,) * (tokens.dim() - 2), -1)


class Part(ABC):
    """What reads the stream and writes into it: attention, an MLP.

    Attributes:
        readers: Tensors whose input is the stream.
        writers: Tensors whose output is the stream; biases too.
        elsewhere: Those of the readers that read the stream of another network.
    """

    readers: ClassVar[tuple[str, ...]]
    writers: ClassVar[tuple[str, ...]]
    elsewhere: ClassVar[tuple[str, ...]] = ()

    @property
    @abstractmethod
    def reads(self) -> str:
        """The label of what its readers read: the stream, with a bias row or without, or another.

        Readers have a bias row, or a tensor with a `b` before their name, or no bias.
        """

    @property
    @abstractmethod
    def axes(self) -> Mapping[str, Axis]:
        """Its axes by label, the stream's among them."""

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, str]:
        """Its tensors and their axes; matrices first, then biases."""

    @property
    def products(self) -> Mapping[str, str]:
        """Contractions of two of its tensors that layers read beside them."""
        return {}

    @property
    @abstractmethod
    def units(self) -> Mapping[str, Unit]:
        """What its function is made of, by a name: of the tensors, in most cases."""

    @property
    def gains(self) -> tuple[str, ...]:
        """Tensors that scale each coordinate of what is written, after a norm of it."""
        return ()

    @property
    def shifted_axes(self) -> Mapping[str, int]:
        """Tensors of which only differences along one axis count, and that axis, from the last."""
        return {}

    def reading_axis(self, reader: str) -> int:
        """Which axis of a reader is the one it reads with, counted from the last, which is -1."""
        labels = self.tensors[reader].split()
        return labels.index(self.source_of(reader)) - len(labels)

    def source_of(self, reader: str) -> str:
        """The label of what one of its readers reads."""
        return self.reads

    def stored_places(self, label: str, size: int) -> Tensor | None:
        """Where the coordinates of an axis stand on disk; None where in their own order.

        Args:
            label: The axis.
            size: Its length.
        """
        return None

    def choices(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
    ) -> Float[Tensor, "n *s t u"] | None:
        """What it chooses for each token, 1 or 0; None if it chooses nothing.

        Args:
            w: Its tensors, of n networks.
            x: What it reads.
        """
        return None

    def margins(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
    ) -> Float[Tensor, "n *s t"] | None:
        """By how much the last that it chooses is better than the next; None if it chooses nothing.

        Relative to all that are compared; infinite where the choice makes no difference.

        Args:
            w: Its tensors, of n networks.
            x: What it reads.
        """
        return None

    def without_jumps(self) -> "Part":
        """The part with choices made gradually, so that rounding cannot turn one into another."""
        return self

    def with_unit_output(self, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its tensors, "… " before their axes, where what it writes has the size 1.

        A norm that reads nothing else does not see that size. The default leaves it.
        """
        return dict(w)

    def with_unit_scales(self, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Its tensors without the scales of its units; the default has none."""
        return dict(w)

    @abstractmethod
    def __call__(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], number: int = 0
    ) -> Float[Tensor, "n *s t x"]:
        """What it writes.

        Args:
            w: Its tensors, of n networks.
            x: What it reads: the stream after the norm, if there is one.
            number: Of the block it stands in.
        """
