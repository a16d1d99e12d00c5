"""What every part of a block has."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.axes import Axis

#: The stream: a model dimension, and the same with a row below for a bias.
STREAM, WITH_BIAS_ROW = "x", "z"
#: A square that others can be divided by is at least this.
TINY = 1e-30

#: Of a field of a part that changes its function, but none of its tables.
FUNCTION_ONLY: Mapping[str, bool] = MappingProxyType({"function only": True})


class Part(ABC):
    """What reads the stream and writes into it: attention, an MLP.

    Attributes:
        readers: Tensors whose input is the stream.
        writers: Tensors whose output is the stream; biases too.
    """

    readers: ClassVar[tuple[str, ...]]
    writers: ClassVar[tuple[str, ...]]

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

    def reading_axis(self, reader: str) -> int:
        """Which axis of a reader is the one it reads with, counted from the last, which is -1."""
        labels = self.tensors[reader].split()
        return labels.index(self.reads) - len(labels)

    def stored_places(self, label: str, size: int) -> Tensor | None:
        """Where the coordinates of an axis stand on disk; None where in their own order.

        Args:
            label: The axis.
            size: Its length.
        """
        return None

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
