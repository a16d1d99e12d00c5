"""Rows: all that an equivariant or invariant layer consists of, derived from a declaration.

A row is *target <- source, with the tied symmetric axes; bracketed axes are summed*:

    A <- VO  x r        tied r, broadcast over a          parameter e c x
    A <- VO  x [r]      summed over r, broadcast          parameter e c x
    B <- bA  a          tied a                            parameter e x' c

Why it is equivariant can be read off: no permuted and no linear axis occurs in a parameter, and
every linear axis is tied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod

from transformer_nfn.space import Block, DeclarationError, Index, Kind

#: The source of a constant row: no weights at all.
CONSTANT = "1"
#: The target of the invariant layer, with one free axis, the paper's D'.
INVARIANT = "I"

#: The length of an axis by its label.
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Row:
    """One term of a layer, in labels.

    Attributes:
        target: The tensor it writes to.
        source: The tensor or product it reads, or `CONSTANT`.
        target_axes: Labels of the target.
        source_axes: Labels of the source.
        tied: Symmetric axes on which target and source have the same index.
        summed: Symmetric axes of the source that are summed.
        broadcast: Symmetric axes of the target along which the row writes the same value.
        free_out: Free axes of the target; each has its own coefficients.
        free_in: Free axes of the source; each has its own coefficients.
        contracted: For a product, the axes that were summed when it was made.
    """

    target: str
    source: str
    target_axes: tuple[str, ...]
    source_axes: tuple[str, ...]
    tied: tuple[str, ...]
    summed: tuple[str, ...]
    broadcast: tuple[str, ...]
    free_out: tuple[str, ...]
    free_in: tuple[str, ...]
    contracted: tuple[str, ...]

    @property
    def name(self) -> str:
        """The row in one line, unique in its layer: ``A <- VO x [r]``."""
        axes = [f"[{label}]" if label in self.summed else label for label in self.source_axes]
        return " ".join([self.target, "<-", self.source, *axes])

    @property
    def parameter(self) -> str:
        """Axes of its parameter, those of the target primed: ``e x' c x``."""
        channel = [] if self.source == CONSTANT else ["c"]
        return " ".join(["e", *(f"{label}'" for label in self.free_out), *channel, *self.free_in])

    def parameter_shape(self, sizes: Sizes, inputs: int, outputs: int) -> tuple[int, ...]:
        """Lengths of the axes in `parameter`."""
        channel = [] if self.source == CONSTANT else [inputs]
        free_out, free_in = ([sizes[a] for a in axes] for axes in (self.free_out, self.free_in))
        return (outputs, *free_out, *channel, *free_in)

    def fan_in(self, sizes: Sizes, inputs: int) -> int:
        """How many products of independent weights one entry of the target adds up."""
        return inputs * prod(sizes[a] for a in (*self.free_in, *self.summed, *self.contracted))


def equivariant_rows(block: Block) -> tuple[Row, ...]:
    """The rows of the equivariant layer, complete for maps that are linear in U, QK and VO.

    Examples:
        >>> from transformer_nfn.space import PAPER
        >>> rows = equivariant_rows(PAPER)
        >>> len(rows)
        45
        >>> [row.name for row in rows if row.target == "O"]
        ['O <- O h v [r]', 'O <- O h v r']
    """
    return _rows(block, dict(block.tensors))


def invariant_rows(block: Block) -> tuple[Row, ...]:
    """The rows of the invariant layer: what no axis of the group can tell apart, summed.

    Examples:
        >>> from transformer_nfn.space import PAPER
        >>> [row.name for row in invariant_rows(PAPER)]  # doctest: +NORMALIZE_WHITESPACE
        ['I <- QK x y', 'I <- VO x [r]', 'I <- A [r] [a]', 'I <- B [a] x', 'I <- bA [a]',
         'I <- bB x', 'I <- 1']
    """
    return _rows(block, {INVARIANT: (Index("d"),)})


def _rows(block: Block, targets: dict[str, tuple[Index, ...]]) -> tuple[Row, ...]:
    if not block.layered:
        raise DeclarationError(
            f"block {block.name!r} has rotary or scaled axes, or axes for each index of a free or "
            f"indexed one, which layers do not know; declare them linear and permuted: a layer for "
            f"the larger group serves the smaller one (see for_layers)"
        )
    sources = {name: p.indices for name, p in block.products.items()}
    sources |= dict(block.tensors)
    sources[CONSTANT] = ()
    return tuple(
        _row(block, (target, target_axes), (source, source_axes), tied)
        for target, target_axes in targets.items()
        for source, source_axes in sources.items()
        for tied in _ties(block, target_axes, source_axes)
    )


def _ties(
    block: Block, target: tuple[Index, ...], source: tuple[Index, ...]
) -> list[frozenset[str]]:
    """The sets of axes that a pair of tensors can tie; none if their linear axes differ.

    By Schur's lemma a map between two tensors needs the same linear axes on both sides, dual or
    not, and is a multiple of the identity on them. Then the heads that index them are tied too.
    Any other permuted axis that both have may be tied or summed, but an axis with a permutation
    of its own for each head can be tied only where the head is.
    """
    linear_out, linear_in = (set(block.of_kind(axes, Kind.LINEAR)) for axes in (target, source))
    if linear_out != linear_in:
        return []
    must = {index.label for index in linear_out}
    must |= {outer for label in must for outer in block.axes[label].per}
    shared = [index.label for index in block.of_kind(target, Kind.PERMUTED) if index in set(source)]
    options = [label for label in shared if label not in must]
    subsets = (set(some) for k in range(len(options) + 1) for some in combinations(options, k))
    return [
        frozenset(must | some)
        for some in subsets
        if all(outer in must | some for label in some for outer in block.axes[label].per)
    ]


def _row(
    block: Block,
    target: tuple[str, tuple[Index, ...]],
    source: tuple[str, tuple[Index, ...]],
    tied: frozenset[str],
) -> Row:
    free_out, free_in = (
        tuple(i.label for i in block.of_kind(axes, Kind.FREE)) for axes in (target[1], source[1])
    )
    out, into = (tuple(i.label for i in axes) for axes in (target[1], source[1]))
    product = block.products.get(source[0])
    return Row(
        target=target[0],
        source=source[0],
        target_axes=out,
        source_axes=into,
        tied=tuple(label for label in out if label in tied),
        summed=tuple(label for label in into if label not in tied and label not in free_in),
        broadcast=tuple(label for label in out if label not in tied and label not in free_out),
        free_out=free_out,
        free_in=free_in,
        contracted=product.contracted if product else (),
    )
