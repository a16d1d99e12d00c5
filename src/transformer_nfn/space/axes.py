"""Axes: what the symmetry group may do to each index of a weight tensor."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from transformer_nfn.space.errors import DeclarationError

#: Letters with a fixed meaning in every shape of this package; no block may declare them.
RESERVED = {
    "n": "networks in a batch",
    "l": "blocks of a network",
    "c": "channels of the input",
    "e": "channels of the output",
    "d": "outputs of the invariant layer for each channel, D' in the paper",
    "t": "tokens of a sequence",
}

#: Letters of the shipped blocks. A block that somebody declares may add its own.
GLOSSARY = {
    **RESERVED,
    "x": "model dimension D",
    "y": "model dimension D of the second factor of a product",
    "z": "model dimension and one row for the bias, D + 1, on the query side",
    "w": "the same on the key side",
    "h": "attention heads",
    "g": "groups of attention heads that share keys and values",
    "m": "attention heads inside one group",
    "k": "query and key coordinates, D_k",
    "v": "value coordinates, D_v",
    "o": "attention heads of a decoder that read what the encoder wrote",
    "p": "their query and key coordinates, D_k",
    "q": "their value coordinates, D_v",
    "r": "output of the attention where no skip connection reads it, D",
    "a": "hidden neurons of the MLP, D_A",
    "u": "experts, of which a router chooses some for each token",
    "s": "the scale of one hidden neuron, 1",
    "f": "the two coordinates of a pair that turns together",
    "j": "pairs of query and key coordinates",
    "i": "the scale of one such pair, 1",
}


class Kind(Enum):
    """How the group acts on an axis."""

    FREE = "free"
    """Not at all."""
    PERMUTED = "permuted"
    """By a permutation."""
    LINEAR = "linear"
    """By an invertible matrix; on the dual axis, written with a star, by its inverse transpose."""
    ROTARY = "rotary"
    """By a nonzero complex number for each pair of coordinates (j, j + size/2); on the dual axis
    by the inverse of its conjugate. It is what rotary positions leave of an invertible matrix."""
    SIGNED = "signed"
    """By a sign for each pair of coordinates (j, j + size/2). It is what norms of queries and keys
    leave of that."""
    SCALED = "scaled"
    """By a positive number for each coordinate, by its inverse on the dual axis."""

    @property
    def has_dual(self) -> bool:
        """Whether the group acts on the starred side by the inverse."""
        return self in (Kind.LINEAR, Kind.ROTARY, Kind.SCALED)


class StreamKind(Enum):
    """What norms leave of the basis of a stream."""

    ORTHOGONAL = "orthogonal"
    """All of it that keeps lengths, where scales are folded into what reads them; under LayerNorm
    what also fixes the ones."""
    PERMUTED = "permuted"
    """Where the output of a LayerNorm is the stream before the first block: its scale holds the
    axes. (A sign of all of them together would be possible, and is not looked for.)"""
    FLIPPED = "permuted, with one sign"
    """Where the output of every LayerNorm is the stream: what it takes away, the mean, holds the
    signs together."""
    SIGNED = "permuted, with a sign each"
    """Where the output of an RMSNorm is added to the stream."""
    FIXED = "fixed"
    """Where the stream is what a network gives, or what an activation writes into it. (The second
    leaves permutations, which are not looked for.)"""


@dataclass(frozen=True)
class Axis:
    """One label of a declaration: its kind, its size, and the axes that index its group.

    Attributes:
        kind: What the group does to it.
        size: A size symbol, a symbol plus a number, or a number: ``"D"``, ``"D + 1"``, ``"1"``.
        per: Labels of permuted axes, the outermost first; the axis has a group element of its own
            for each of their indices. Keys have one matrix for each head: ``per=("h",)``.
    """

    kind: Kind
    size: str
    per: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _SIZE.fullmatch(self.size):
            raise DeclarationError(
                f"size {self.size!r} is not a symbol, a symbol plus a number or a number; "
                f"write for example 'D', 'D + 1' or '1'"
            )

    @cached_property
    def symbol(self) -> str:
        """The size symbol without its offset; empty for a plain number."""
        match = _SIZE.fullmatch(self.size)
        assert match is not None
        return match["symbol"] or ""

    @cached_property
    def offset(self) -> int:
        """What is added to the size symbol."""
        match = _SIZE.fullmatch(self.size)
        assert match is not None
        return int(match["offset"] or match["number"] or 0)


_SIZE = re.compile(r"(?P<symbol>[A-Za-z_]\w*)(?: \+ (?P<offset>\d{1,9}))?|(?P<number>[1-9]\d{0,8})")


def free(size: str) -> Axis:
    """An axis that the group leaves alone."""
    return Axis(Kind.FREE, size)


def permuted(size: str, per: str = "") -> Axis:
    """An axis that the group permutes, with a permutation for each index of the axes in `per`."""
    return Axis(Kind.PERMUTED, size, tuple(per.split()))


def linear(size: str, per: str = "") -> Axis:
    """An axis that GL acts on, with a matrix for each index of the axes in `per`."""
    return Axis(Kind.LINEAR, size, tuple(per.split()))


def rotary(size: str, per: str = "") -> Axis:
    """An axis of pairs (j, j + size/2), with complex numbers for each index of `per`."""
    return Axis(Kind.ROTARY, size, tuple(per.split()))


def signed(size: str, per: str = "") -> Axis:
    """An axis of pairs (j, j + size/2), with signs for each index of `per`."""
    return Axis(Kind.SIGNED, size, tuple(per.split()))


def scaled(size: str, per: str = "") -> Axis:
    """An axis of positive scales, with scales for each index of the axes in `per`."""
    return Axis(Kind.SCALED, size, tuple(per.split()))


class Index(NamedTuple):
    """One axis of one tensor: a label, and whether it is the dual (starred) side of it."""

    label: str
    dual: bool = False

    def __str__(self) -> str:
        return self.label + "*" * self.dual


def parse_indices(text: str) -> tuple[Index, ...]:
    """Read the axes of a tensor.

    Examples:
        >>> [str(index) for index in parse_indices("h v* r")]
        ['h', 'v*', 'r']
    """
    indices = []
    for word in text.split():
        label = word.removesuffix("*")
        if not (len(label) == 1 and label.isascii() and label.islower()):
            raise DeclarationError(
                f"axis {word!r} in {text!r} is not one lower-case letter, or a letter and a star"
            )
        indices.append(Index(label, word.endswith("*")))
    return tuple(indices)
