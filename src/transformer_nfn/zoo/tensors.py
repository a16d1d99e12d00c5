"""Networks of which nothing is known but their tensors, by name."""

from functools import cached_property
from math import prod
from typing import Annotated

from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from transformer_nfn.space import NetBatch
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.nets import Entry, NetShape, entries

#: Largest networks: a zoo's rows are held in memory together.
MOST_NUMBERS, MOST_TENSORS = 2**24, 2**16
_Tensor = tuple[
    Annotated[str, Field(min_length=1, max_length=500)],
    tuple[Annotated[int, Field(ge=1, le=MOST_NUMBERS)], ...],
]


class TensorShape(BaseModel):
    """Names and shapes of a network's tensors, in the order in which they stand in a row.

    It has what `NetShape` has as far as that can be known; what needs blocks is refused.

    Examples:
        >>> TensorShape(tensors=(("out.bias", (3,)), ("out.weight", (3, 8)))).size
        27
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    tensors: Annotated[tuple[_Tensor, ...], Field(min_length=1, max_length=MOST_TENSORS)]

    @model_validator(mode="after")
    def _sound(self) -> "TensorShape":
        if len({name for name, _ in self.tensors}) < len(self.tensors):
            raise ValueError("a tensor is there twice")
        if self.size > MOST_NUMBERS:
            raise ValueError(f"{self.size:,} numbers in a network, at most {MOST_NUMBERS:,} go")
        return self

    @cached_property
    def stored(self) -> dict[str, Entry]:
        """Where each tensor is in a row."""
        return entries(dict(self.tensors))

    @property
    def size(self) -> int:
        """Numbers in one network."""
        return sum(prod(dims) for _, dims in self.tensors)

    @property
    def tokens(self) -> int:
        """0: of its inputs nothing is known."""
        return 0

    @property
    def owned(self) -> NetShape:
        """What is not known of it.

        Raises:
            StoreError: Always.
        """
        raise StoreError(
            "of these networks only the tensors are known, not what blocks they make: nothing "
            "can move them by the group, run them, or read their blocks"
        )

    def net_batch(self, stored: Float[Tensor, "n weights"]) -> NetBatch:
        """Refused as well: a batch of networks has blocks."""
        return self.owned.net_batch(stored)


#: What a zoo's rows are.
AnyShape = NetShape | TensorShape
