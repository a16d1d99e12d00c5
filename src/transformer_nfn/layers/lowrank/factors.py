"""The parameters of one row in a layer with a rank."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from transformer_nfn.layers.named import Named
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes

#: The label of the R products that a parameter is a sum of.
RANK = "ρ"


@dataclass(frozen=True)
class Factors:
    """How a row's Φ is stored: in full, or with two or more free axes as a sum of R products.

    Φ[e, x'…, c, x, y…] = Σ_r mix[r, e, c] · Π out_x'[r, x'] · Π in_x[r, x], for each block l.

    Attributes:
        declared: The row.
        rank: R.
        sizes: The length of an axis by its label.
        inputs: c.
        outputs: e.
    """

    declared: Row
    rank: int
    sizes: Sizes
    inputs: int
    outputs: int

    @cached_property
    def row(self) -> Row:
        """The row without free axes of length 1, such as D' = 1: there is nothing to weight.

        Its Φ would else be a sum of products for the sake of an axis that has no choice.
        """
        free_out, single_out = self._by_length(self.declared.free_out)
        free_in, single_in = self._by_length(self.declared.free_in)
        return replace(
            self.declared,
            free_out=free_out,
            broadcast=(*self.declared.broadcast, *single_out),
            free_in=free_in,
            summed=(*self.declared.summed, *single_in),
        )

    def _by_length(self, labels: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Axes longer than 1, and the others."""
        longer = tuple(a for a in labels if self.sizes[a] > 1)
        return longer, tuple(a for a in labels if a not in longer)

    @property
    def factored(self) -> bool:
        """Whether Φ has two or more free axes."""
        return len(self.row.free_out) + len(self.row.free_in) >= 2

    def name(self, part: str) -> str:
        """The name of one parameter: ``B__QK__none__in_x``."""
        tied = "_".join(self.row.tied) or "none"
        return f"{self.row.target}__{self.row.source}__{tied}__{part}"

    @property
    def width(self) -> int:
        """How many weighted sums of its source the row takes; 0 if the source has no free axis."""
        if not self.row.free_in:
            return 0
        return self.rank if self.factored else self.outputs

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name, without the "l" that all of them begin with."""
        row = self.row
        if not self.factored:
            return {self.name("full"): row.parameter_shape(self.sizes, self.inputs, self.outputs)}
        channels = () if row.source == CONSTANT else (self.inputs,)
        return {
            self.name("mix"): (self.rank, self.outputs, *channels),
            **{self.name(f"out_{a}"): (self.rank, self.sizes[a]) for a in row.free_out},
            **{self.name(f"in_{a}"): (self.rank, self.sizes[a]) for a in row.free_in},
        }

    @property
    def count(self) -> int:
        """How many numbers the row learns in one block."""
        return sum(map(prod, self.shapes().values()))

    def variances(self, variance: float) -> dict[str, float]:
        """Variances of the parameters with which every entry of Φ has the given one.

        Var Φ = R · Var mix · Π Var out · Π Var in. Sums over a source's axis have the variance of
        its entries; what remains to be scaled is scaled by `mix`.
        """
        if not self.factored:
            return {self.name("full"): variance}
        free = {a: self.sizes[a] for a in self.row.free_in}
        return {
            self.name("mix"): variance * prod(free.values()) / self.rank,
            **{self.name(f"out_{a}"): 1.0 for a in self.row.free_out},
            **{self.name(f"in_{a}"): 1 / size for a, size in free.items()},
        }

    def full(self, parameters: Mapping[str, Tensor]) -> Named:
        """The parameter of a row that is not factored."""
        primed = (f"{a}'" for a in self.row.free_out)
        channels = () if self.row.source == CONSTANT else ("c",)
        labels = ("l", "e", *primed, *channels, *self.row.free_in)
        return Named(labels, parameters[self.name("full")])

    def mix(self, parameters: Mapping[str, Tensor]) -> Named:
        """The channels of a factored row."""
        channels = () if self.row.source == CONSTANT else ("c",)
        return Named(("l", RANK, "e", *channels), parameters[self.name("mix")])

    def incoming(self, parameters: Mapping[str, Tensor], axis: str) -> Named:
        """The coefficients of one free axis of the source; a full row has one set for each e."""
        if self.factored:
            return Named(("l", RANK, axis), parameters[self.name(f"in_{axis}")])
        return Named(("l", RANK, "c", axis), parameters[self.name("full")])

    def outgoing(self, parameters: Mapping[str, Tensor], axis: str) -> Named:
        """The coefficients of one free axis of the target; in a full row c takes the rank's place.

        The target's axis is written with a prime.
        """
        if self.factored:
            return Named(("l", RANK, f"{axis}'"), parameters[self.name(f"out_{axis}")])
        return Named(("l", "e", f"{axis}'", RANK), parameters[self.name("full")])

    def dense(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Φ itself, "l" and the axes of `Row.parameter`. For tests: it is as large as it is."""
        shape = self.declared.parameter_shape(self.sizes, self.inputs, self.outputs)
        if not self.factored:
            return parameters[self.name("full")].view(-1, *shape)
        total = self.mix(parameters)
        parts = [self.outgoing(parameters, a) for a in self.row.free_out]
        parts += [self.incoming(parameters, a) for a in self.row.free_in]
        for part in parts:
            total = total.times(part, (*total.labels, part.labels[-1]))
        wanted = tuple(self.row.parameter.split())
        phi = torch.sum(total.order(("l", *wanted, RANK)).tensor, dim=-1)
        return phi.view(-1, *shape)
