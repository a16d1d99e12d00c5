"""A block declared once as a table of tensors with labelled axes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.space.axes import RESERVED, Axis, Index, Kind, parse_indices
from transformer_nfn.space.errors import DeclarationError
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.half import Half, NormPlace
from transformer_nfn.space.parts.part import Unit

#: What a block computes: (tensors of one block, tokens "n t x", epsilon of its norms) -> tokens.
BlockFunction = Callable[[Mapping[str, Tensor], Tensor, float], Tensor]

#: Limits of a declaration, which may come from a file: rows grow with 2^axes · tensors².
MAX_AXES = 6
MAX_TENSORS = 32


@dataclass(frozen=True)
class Factor:
    """One factor of a product: a tensor, with its axes as the product names them."""

    tensor: str
    indices: tuple[Index, ...]


@dataclass(frozen=True)
class Product:
    """A contraction of two tensors in which every linear axis meets its dual.

    The paper's [WW]^(QK) = Σ_s W^(Q,s) (W^(K,s))ᵀ is ``"Q h x k, K h y k* -> x y"``
    (Definition "additional terms"; heads are summed, as in the final formulas).
    """

    factors: tuple[Factor, Factor]
    indices: tuple[Index, ...]

    @property
    def contracted(self) -> tuple[str, ...]:
        """Labels that are summed away, each once, in the order they occur."""
        kept = {index.label for index in self.indices}
        labels = [index.label for factor in self.factors for index in factor.indices]
        return tuple(dict.fromkeys(label for label in labels if label not in kept))

    def __str__(self) -> str:
        left, right = (f"{f.tensor} {_join(f.indices)}" for f in self.factors)
        return f"{left}, {right} -> {_join(self.indices)}"


@dataclass(frozen=True, eq=False)
class Block:
    """The declaration of a block; `declare` makes one from text.

    Everything else is derived from it: shapes, the group and its action, the rows of the layers.

    Attributes:
        name: What error messages and saved models call it; nothing is decided by it.
        axes: By label.
        tensors: The axes of each.
        products: Contractions of two tensors.
        function: What it computes, if that is known.
        halves: The parts it is composed of and how they meet the stream; empty where only its
            tables are declared.
        parallel: All halves read the stream as it was before the block.
    """

    name: str
    axes: Mapping[str, Axis]
    tensors: Mapping[str, tuple[Index, ...]]
    products: Mapping[str, Product]
    function: BlockFunction | None = None
    halves: tuple[Half, ...] = ()
    parallel: bool = False
    _tables: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Now and as text, since every layer asks whether weights are of its block, of any name.
        object.__setattr__(self, "_tables", repr({**self.tables(), "name": ""}))
        # What functions of tensors ask for is worked out now: before Python 3.12 a cached property
        # takes a lock at first, which torch.compile cannot trace, in those functions nor here.
        if not torch.compiler.is_compiling():
            for name in ("readers", "writers", "attentions", "gains", "shifted", "units"):
                getattr(self, name)

    def labels(self, name: str) -> tuple[Index, ...]:
        """The axes of a tensor or of a product."""
        if name in self.tensors:
            return self.tensors[name]
        if name in self.products:
            return self.products[name].indices
        known = ", ".join([*self.tensors, *self.products])
        raise DeclarationError(f"block {self.name!r} has no tensor or product {name!r}: {known}")

    def of_kind(self, indices: tuple[Index, ...], kind: Kind) -> tuple[Index, ...]:
        """Those of the indices whose axis is of a kind, in order; reserved letters are free."""
        return tuple(
            index
            for index in indices
            if (Kind.FREE if index.label in RESERVED else self.axes[index.label].kind) is kind
        )

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, int]]:
        """Tensors that read a stream: with which axis, counted from the last, and in which half.

        What reads the stream of another network has -1 for it: that comes after all halves.
        """
        return {
            name: (half.part.reading_axis(name), -1 if name in half.part.elsewhere else number)
            for number, half in enumerate(self.halves)
            for name in half.part.readers
        }

    @cached_property
    def writers(self) -> Mapping[str, int]:
        """Tensors that write into a stream, all with their last axis: in which half."""
        return {
            name: number
            for number, half in enumerate(self.halves)
            for name in half.part.writers
            if name in self.tensors
        }

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """Those of its parts that compare tokens."""
        return tuple(half.part for half in self.halves if isinstance(half.part, Attention))

    @cached_property
    def gains(self) -> Mapping[str, int]:
        """Tensors that scale the coordinates of what is written: in which half."""
        return {name: number for number, half in enumerate(self.halves) for name in half.part.gains}

    @cached_property
    def shifted(self) -> Mapping[str, int]:
        """Tensors of which only differences along an axis count: that axis, from the last."""
        return {name: axis for half in self.halves for name, axis in half.part.shifted_axes.items()}

    @cached_property
    def units(self) -> Mapping[str, Unit]:
        """What its function is made of, by name."""
        return {name: unit for half in self.halves for name, unit in half.part.units.items()}

    @property
    def pointwise(self) -> tuple[str, ...]:
        """Tensors without a linear axis: on them any function of single entries is equivariant.

        In the paper's block that is the MLP part, where the paper applies ReLU.
        """
        return tuple(t for t, axes in self.tensors.items() if not self.of_kind(axes, Kind.LINEAR))

    @property
    def layered(self) -> bool:
        """Whether layers can be derived: they know free, permuted and linear axes.

        Axes may be indexed by permuted ones only, and by none that is indexed itself, as the scales
        of experts' neurons are.
        """
        known = (Kind.FREE, Kind.PERMUTED, Kind.LINEAR)
        outer = [self.axes[label] for axis in self.axes.values() for label in axis.per]
        plain = all(axis.kind is Kind.PERMUTED and not axis.per for axis in outer)
        return plain and all(axis.kind in known for axis in self.axes.values())

    def tables(self) -> dict[str, Any]:
        """Its name, and its axes, tensors and products, all that weights depend on: plain data."""
        return {
            "name": self.name,
            "axes": {
                label: {"kind": axis.kind.value, "size": axis.size, "per": " ".join(axis.per)}
                for label, axis in self.axes.items()
            },
            "tensors": {name: _join(indices) for name, indices in self.tensors.items()},
            "products": {name: str(product) for name, product in self.products.items()},
        }

    def has_tables_of(self, other: "Block") -> bool:
        """Whether weights of one are weights of the other, whatever both are called.

        What is computed may still differ.
        """
        return self is other or self._tables == other._tables

    def computes_as(self, other: "Block") -> bool:
        """Whether both are known to compute the same of the same tensors, or nothing is known."""
        if self.halves or other.halves:
            return (self.halves, self.parallel) == (other.halves, other.parallel)
        return self.function is other.function

    def to_dict(self) -> dict[str, Any]:
        """The declaration as plain data, with its parts, but without a function of its own."""
        if not self.halves:
            return self.tables()
        parts = {"halves": [half.to_dict() for half in self.halves]}
        return self.tables() | parts | ({"parallel": True} if self.parallel else {})

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Block":
        """The inverse of `to_dict`, with all checks of `declare`."""
        if "halves" in data:
            halves, parallel = map(Half.from_dict, data["halves"]), data.get("parallel") is True
            block = compose(data["name"], *halves, parallel=parallel)
            if block.to_dict() != dict(data):
                raise DeclarationError(f"the tables of block {block.name!r} are not its parts'")
            return block
        axes = {
            label: Axis(Kind(axis["kind"]), axis["size"], tuple(axis["per"].split()))
            for label, axis in data["axes"].items()
        }
        return declare(data["name"], axes, data["tensors"], data["products"])

    def __reduce__(self) -> tuple[Any, ...]:
        tables = (dict(self.axes), dict(self.tensors), dict(self.products))
        # A lambda does not pickle, and a worker of a DataLoader would wait for ever because of it.
        own = None if "<" in getattr(self.function, "__qualname__", "") else self.function
        return _block, (self.name, *tables, own, self.halves, self.parallel)

    def __deepcopy__(self, memo: object) -> "Block":
        return self  # nothing in it can be changed

    def __repr__(self) -> str:
        return f"Block({self.name}: {' '.join([*self.tensors, *self.products])})"


def _block(
    name: str,
    axes: dict[str, Axis],
    tensors: dict[str, tuple[Index, ...]],
    products: dict[str, Product],
    *others: Any,
) -> Block:
    """A block from what `Block.__reduce__` took apart."""
    tables = (MappingProxyType(axes), MappingProxyType(tensors), MappingProxyType(products))
    return Block(name, *tables, *others)


def declare(
    name: str,
    axes: Mapping[str, Axis],
    tensors: Mapping[str, str],
    products: Mapping[str, str],
    function: BlockFunction | None = None,
    halves: tuple[Half, ...] = (),
    parallel: bool = False,
) -> Block:
    """Declare a block by its tables; `compose` makes them of known parts.

    Examples:
        >>> from transformer_nfn.space import declare, free, permuted
        >>> mlp = declare(
        ...     "mlp",
        ...     axes={"x": free("D"), "a": permuted("D_A")},
        ...     tensors={"A": "x a", "B": "a x", "bA": "a"},
        ...     products={},
        ... )
        >>> mlp.pointwise
        ('A', 'B', 'bA')

    Args:
        name: What error messages and saved models call it.
        axes: For each one-letter label its kind and size.
        tensors: For each tensor its axes, ``"h x k"``; a star marks the dual side.
        products: ``"Q h x k, K h y k* -> x y"``: two tensors, with free axes renamed where
            both have them, and the axes that stay. The others are summed.
        function: What the block computes, for tests of invariance and for users.
        halves: The parts it is composed of, if it is.
        parallel: Whether all of them read the stream as it was before the block.

    Raises:
        DeclarationError: If the table is not one from which the group and layers can be derived.
    """
    block = Block(
        name,
        MappingProxyType(dict(axes)),
        MappingProxyType({t: parse_indices(text) for t, text in tensors.items()}),
        MappingProxyType({p: _parse_product(p, text) for p, text in products.items()}),
        function,
        halves,
        parallel,
    )
    if len(block.tensors) + len(block.products) > MAX_TENSORS:
        raise DeclarationError(
            f"block {name!r} has {len(block.tensors)} tensors and {len(block.products)} products, "
            f"more than {MAX_TENSORS} in all; make repeated parts an axis"
        )
    _check_axes(block)
    for tensor, indices in block.tensors.items():
        _check_indices(block, tensor, indices)
    for product in block.products:
        _check_product(block, product)
    used = {i.label for t in block.tensors for i in block.labels(t)}
    used |= {i.label for p in block.products for i in block.labels(p)}
    if unused := sorted(set(block.axes) - used):
        raise DeclarationError(f"block {name!r} declares axes that no tensor has: {unused}")
    return block


def compose(name: str, *halves: Half, parallel: bool = False) -> Block:
    """Declare a block by its parts, in the order in which tokens meet them.

    Examples:
        >>> from transformer_nfn.space import Attention, Half, Mlp, compose
        >>> block = compose("mine", Half(Attention(), "layer"), Half(Mlp("gelu"), "layer"))
        >>> dict(block.to_dict()["tensors"])["Q"]
        'h z k'

    Args:
        name: What error messages and saved models call it.
        halves: The parts and how they meet the stream.
        parallel: Whether all of them read the stream as it was before the block.
    """
    if parallel and not all(h.skip and h.place is NormPlace.BEFORE for h in halves):
        raise DeclarationError(
            f"block {name!r}: what reads the stream side by side is added to it, after a norm"
        )

    parts = [half.part for half in halves]
    names = [tensor for part in parts for tensor in part.tensors]
    if len(names) != len(set(names)):
        raise DeclarationError(f"block {name!r}: two parts have tensors of the same name")
    tables = [{**part.tensors} for part in parts]
    # Matrices in order, then the biases: the order of the parameters of layers.
    matrices = {t: axes for table in tables for t, axes in table.items() if not _is_bias(t)}
    biases = {t: axes for table in reversed(tables) for t, axes in table.items() if _is_bias(t)}
    return declare(
        name,
        {label: axis for part in parts for label, axis in part.axes.items()},
        matrices | biases,
        {product: text for part in parts for product, text in part.products.items()},
        partial(_run, halves, parallel),
        halves,
        parallel,
    )


def _run(
    halves: tuple[Half, ...],
    parallel: bool,
    w: Mapping[str, Tensor],
    tokens: Tensor,
    eps: float,
) -> Tensor:
    """What a block of such halves computes."""
    if parallel:
        return tokens + sum(half(w, tokens, eps) - tokens for half in halves)
    for half in halves:
        tokens = half(w, tokens, eps)
    return tokens


def _is_bias(tensor: str) -> bool:
    return tensor.startswith("b")


def _join(indices: tuple[Index, ...]) -> str:
    return " ".join(str(index) for index in indices)


def _parse_product(name: str, text: str) -> Product:
    inputs, arrow, output = text.partition("->")
    factors = []
    for part in inputs.split(","):
        tensor, _, indices = part.strip().partition(" ")
        factors.append(Factor(tensor, parse_indices(indices)))
    if not arrow or len(factors) != 2:
        raise DeclarationError(
            f"product {name!r} is {text!r}; write two factors, for example "
            f"'Q h x k, K h y k* -> x y'"
        )
    return Product((factors[0], factors[1]), parse_indices(output))


def _check_axes(block: Block) -> None:
    for label, axis in block.axes.items():
        if label in RESERVED:
            raise DeclarationError(
                f"block {block.name!r}: axis {label!r} is reserved for {RESERVED[label]}"
            )
        for outer in axis.per:
            kinds = (Kind.PERMUTED, Kind.FREE)
            if outer not in block.axes or block.axes[outer].kind not in kinds:
                raise DeclarationError(
                    f"block {block.name!r}: axis {label!r} is declared per {outer!r}, "
                    f"which must be a permuted or free axis of the block"
                )
            before = axis.per[: axis.per.index(outer)]
            if block.axes[outer].per != before[: len(block.axes[outer].per)]:
                raise DeclarationError(
                    f"block {block.name!r}: axis {label!r} is per {outer!r}, which is itself per "
                    f"{' '.join(block.axes[outer].per)!r}; name these before it"
                )


def _check_indices(block: Block, name: str, indices: tuple[Index, ...]) -> None:
    labels = [index.label for index in indices]
    if len(labels) > MAX_AXES:
        raise DeclarationError(f"{name!r} has {len(labels)} axes, more than {MAX_AXES}")
    where = f"block {block.name!r}, {name!r} with axes {_join(indices)!r}"
    for index in indices:
        if index.label not in block.axes:
            raise DeclarationError(f"{where}: axis {index.label!r} is not declared")
        axis = block.axes[index.label]
        if labels.count(index.label) > 1:
            raise DeclarationError(f"{where}: axis {index.label!r} occurs twice")
        if index.dual and not axis.kind.has_dual:
            raise DeclarationError(
                f"{where}: free and permuted axes have no dual, so no star at {index.label!r}"
            )
        if missing := [outer for outer in axis.per if outer not in labels]:
            raise DeclarationError(f"{where}: axis {index.label!r} needs {missing} beside it")


def _check_product(block: Block, name: str) -> None:
    product = block.products[name]
    where = f"block {block.name!r}, product {name!r}"
    if name in block.tensors:
        raise DeclarationError(f"{where} has the name of a tensor")
    for factor in product.factors:
        if factor.tensor not in block.tensors:
            raise DeclarationError(f"{where}: no tensor {factor.tensor!r}")
        _check_indices(block, f"{name}, factor {factor.tensor}", factor.indices)
        declared = block.tensors[factor.tensor]
        if len(declared) != len(factor.indices):
            raise DeclarationError(
                f"{where}: {factor.tensor} has axes {_join(declared)!r}, "
                f"not {_join(factor.indices)!r}"
            )
        for own, renamed in zip(declared, factor.indices, strict=True):
            both_free = all(block.axes[i.label].kind is Kind.FREE for i in (own, renamed))
            same_size = block.axes[own.label].size == block.axes[renamed.label].size
            if own != renamed and not (both_free and same_size):
                raise DeclarationError(
                    f"{where}: {factor.tensor} has {str(own)!r} where the product writes "
                    f"{str(renamed)!r}; only a free axis may be renamed, to one of its size"
                )
    _check_indices(block, name, product.indices)
    first, second = (set(factor.indices) for factor in product.factors)
    for index in product.indices:
        if index not in first | second:
            raise DeclarationError(f"{where}: no factor has the axis {str(index)!r}")
    for index in block.of_kind(tuple(first | second), Kind.LINEAR):
        meets_dual = index in first and Index(index.label, not index.dual) in second
        meets_dual |= index in second and Index(index.label, not index.dual) in first
        if index.label not in product.contracted or not meets_dual:
            raise DeclarationError(
                f"{where}: the linear axis {str(index)!r} must be summed against its dual"
            )
