"""A block declaration with numbers for its sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any

from transformer_nfn.space.axes import Kind
from transformer_nfn.space.block import Block
from transformer_nfn.space.errors import DeclarationError


@dataclass(frozen=True, eq=False, init=False)
class BlockSpec:
    """A block and its sizes.

    Examples:
        >>> from transformer_nfn.space import PAPER, BlockSpec
        >>> spec = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
        >>> spec.shape("O"), spec.shape("QK"), spec.weights
        ((2, 16, 32), (32, 32), 8288)
    """

    block: Block
    sizes: Mapping[str, int]
    lengths: Mapping[str, int]  # of each axis, by its label
    shapes: Mapping[str, tuple[int, ...]]  # of each tensor and product, by its name

    def __init__(self, block: Block, /, **sizes: int) -> None:
        """Check the sizes against the declaration.

        Raises:
            DeclarationError: If a size is missing, unknown or too small.
        """
        wanted = dict.fromkeys(axis.symbol for axis in block.axes.values() if axis.symbol)
        missing = [symbol for symbol in wanted if symbol not in sizes]
        unknown = [symbol for symbol in sizes if symbol not in wanted]
        if missing or unknown:
            raise DeclarationError(
                f"block {block.name!r} takes the sizes {', '.join(wanted)}; "
                f"missing: {', '.join(missing) or 'none'}, unknown: {', '.join(unknown) or 'none'}"
            )
        ordered = {symbol: sizes[symbol] for symbol in wanted}
        if wrong := [
            f"{name}={size!r:.40}" for name, size in ordered.items() if type(size) is not int
        ]:
            raise DeclarationError(f"sizes are whole numbers, not {', '.join(wrong)}")
        lengths = {a: ordered.get(axis.symbol, 0) + axis.offset for a, axis in block.axes.items()}
        object.__setattr__(self, "block", block)
        object.__setattr__(self, "sizes", MappingProxyType(ordered))
        object.__setattr__(self, "lengths", MappingProxyType(lengths))
        indexing = {outer for axis in block.axes.values() for outer in axis.per}
        for label, axis in block.axes.items():
            # A permuted axis of size 1 would make "tied" and "summed" rows the same row twice.
            # Heads are exempt: wherever they meet a linear axis they are tied anyway.
            splits_rows = axis.kind is Kind.PERMUTED and label not in indexing and block.layered
            if self.size(label) < 1 + splits_rows:
                raise DeclarationError(
                    f"block {block.name!r}: axis {label!r} ({axis.kind.value}, {axis.size}) has "
                    f"size {self.size(label)}, needs at least {1 + splits_rows}"
                )
            if axis.kind in (Kind.ROTARY, Kind.SIGNED) and self.size(label) % 2:
                raise DeclarationError(
                    f"block {block.name!r}: axis {label!r} is of pairs, so its size is even, "
                    f"not {self.size(label)}"
                )
        shapes = {
            name: tuple(lengths[index.label] for index in block.labels(name))
            for name in (*block.tensors, *block.products)
        }
        object.__setattr__(self, "shapes", MappingProxyType(shapes))

    def size(self, label: str) -> int:
        """The length of an axis."""
        return self.lengths[label]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor or product in one network, channel and block."""
        if name not in self.shapes:
            self.block.labels(name)  # says which there are
        return self.shapes[name]

    @property
    def weights(self) -> int:
        """Numbers in one block of one network."""
        return sum(prod(self.shape(name)) for name in self.block.tensors)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BlockSpec)
            and self.sizes == other.sizes
            and self.block.has_tables_of(other.block)
        )

    def __hash__(self) -> int:
        return hash((*self.block.tensors, *self.sizes.items()))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{symbol}={size}" for symbol, size in self.sizes.items())
        return f"BlockSpec({self.block.name}, {sizes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _spec, (self.block, dict(self.sizes))


def _spec(block: Block, sizes: dict[str, int]) -> BlockSpec:
    return BlockSpec(block, **sizes)
