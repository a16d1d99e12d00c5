"""Rows with parameters of rank R: linear in D, and no D × D tensor is ever made.

A row in three steps. It *reads*: sums of its source over symmetric axes, and over free axes with
weights, "n c l ρ tied". It *mixes*: channels c to e, for each ρ. It *writes*: times the weights of
the target's free axes, summed over ρ. A product is never made before its axes are weighted: the
form Σ u_x QK_xy w_y is (uᵀQ)(Kᵀw), summed over heads and their coordinates.

Every tensor is read once for each set of axes that stays, for all rows at once, and written once:
what goes into a target with all its rows is one matmul.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.layers.lowrank.factors import RANK, Factors
from transformer_nfn.layers.named import Named, Sums
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes
from transformer_nfn.space import Block, WeightBatch

Parameters = Mapping[str, Tensor]


class Read(NamedTuple):
    """What is read of a tensor: some axes stay, some are weighted, all others are summed."""

    tensor: str
    stay: tuple[str, ...]
    weighted: tuple[str, ...]


@dataclass(frozen=True)
class Use:
    """What a group of rows takes from one tensor.

    Attributes:
        read: What is read.
        names: The name in the source of each axis that is called otherwise in the tensor.
    """

    read: Read
    names: Mapping[str, str]

    @property
    def weighted(self) -> tuple[str, ...]:
        """The weighted axes, as the source calls them."""
        return tuple(self.names.get(a, a) for a in self.read.weighted)


@dataclass(frozen=True)
class SourceRows:
    """Rows with the same source and tied axes.

    Attributes:
        rows: The rows.
        uses: What they read: the source, or both factors of a product.
        last: Free axes that both factors of a product have; weighted after multiplying.
    """

    rows: tuple[Factors, ...]
    uses: tuple[Use, ...]
    last: tuple[str, ...]

    @property
    def widths(self) -> list[int]:
        """How many weighted sums each row takes."""
        return [factors.width for factors in self.rows]


class LowRank:
    """How to run the rows of a layer with a rank. Holds no parameters."""

    def __init__(
        self,
        rows: Sequence[Row],
        block: Block,
        sizes: Sizes,
        inputs: int,
        outputs: int,
        rank: int,
    ) -> None:
        """Group the rows."""
        self.sizes, self.inputs, self.outputs, self.rank = sizes, inputs, outputs, rank
        self.factors = {row.name: Factors(row, rank, sizes, inputs, outputs) for row in rows}
        self.targets = {
            target: tuple(f for f in self.factors.values() if f.row.target == target)
            for target in dict.fromkeys(row.target for row in rows)
        }
        together: dict[tuple[str, tuple[str, ...]], list[Factors]] = {}
        for factors in self.factors.values():
            if factors.row.source != CONSTANT:
                key = (factors.row.source, factors.row.tied)
                together.setdefault(key, []).append(factors)
        self.groups = tuple(_group(block, tuple(members)) for members in together.values())
        #: For each read the groups that use it, and as which of their factors.
        self.reads: dict[Read, list[tuple[int, int]]] = {}
        for number, group in enumerate(self.groups):
            for place, use in enumerate(group.uses):
                self.reads.setdefault(use.read, []).append((number, place))

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters by name, without "l"."""
        return {
            name: shape
            for factors in self.factors.values()
            for name, shape in factors.shapes().items()
        }

    def row_parameter(self, row: Row, parameters: Parameters) -> Tensor:
        """Φ of a row, computed from its factors."""
        return self.factors[row.name].dense(parameters)

    def run(
        self, batch: WeightBatch, parameters: Parameters, relu: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """The targets "n e l axes", those named in `relu` after ReLU.

        Args:
            batch: The weights.
            parameters: The parameters by name.
            relu: Targets to which ReLU is applied.
        """
        parts = self._read(batch, parameters)
        features: dict[str, Named] = {}
        for number, group in enumerate(self.groups):
            whole = _combined(group, [parts[number, i] for i in range(len(group.uses))], parameters)
            starts = accumulate(group.widths, initial=0)
            for factors, start in zip(group.rows, starts, strict=False):
                part = whole.narrow(RANK, start, factors.width) if factors.width else whole
                features[factors.row.name] = part
        return {
            target: self._write(members, features, parameters, batch.networks, target in relu)
            for target, members in self.targets.items()
        }

    def _read(self, batch: WeightBatch, parameters: Parameters) -> dict[tuple[int, int], Named]:
        """For each use of each group what it reads, with the source's names for axes."""
        labels = {
            name: tuple(index.label for index in indices)
            for name, indices in batch.spec.block.tensors.items()
        }
        sums = Sums(
            {name: Named(("n", "c", "l", *labels[name]), batch[name]) for name in batch.tensors}
        )
        everywhere = {"n": batch.networks, "c": batch.channels}
        parts = {}
        for read, users in self.reads.items():
            left = tuple(a for a in labels[read.tensor] if a in (*read.stay, *read.weighted))
            value = sums.over(read.tensor, ("n", "c", "l", *left))
            for place, axis in enumerate(read.weighted):
                weights = _weights(
                    [
                        (factors, self.groups[number].uses[i].weighted[place])
                        for number, i in users
                        for factors in self.groups[number].rows
                    ],
                    parameters,
                    axis,
                    everywhere,
                )
                if len(value.labels) > 4:  # so that the tensor itself is not copied
                    weights = weights.expand(("n", "c", "l", RANK, axis), everywhere)
                stay = tuple(a for a in value.labels[3:] if a not in (axis, RANK))
                value = weights.times(value, ("n", "c", "l", RANK, *stay))
            start = 0
            for number, i in users:
                group = self.groups[number]
                part = value
                if read.weighted:
                    part = value.narrow(RANK, start, sum(group.widths))
                    start += sum(group.widths)
                parts[number, i] = part.rename(group.uses[i].names)
        return parts

    def _write(
        self,
        members: Sequence[Factors],
        features: Mapping[str, Named],
        parameters: Parameters,
        networks: int,
        relu: bool,
    ) -> Tensor:
        """One target, "n e l axes"."""
        row = members[0].row
        axes = tuple(f"{a}'" if a in row.free_out else a for a in row.target_axes)
        mixed = [(f, _mixed(f, features.get(f.row.name), parameters)) for f in members]
        if len(row.free_out) == 1 and len(axes) > 1:
            return self._written_at_once(row, axes, mixed, parameters, networks, relu)
        terms = [_outer(f, term, parameters) for f, term in mixed]
        out = _sum(terms, axes, networks)
        return out.relu() if relu else out

    def _written_at_once(
        self,
        row: Row,
        axes: tuple[str, ...],
        mixed: Sequence[tuple[Factors, Named]],
        parameters: Parameters,
        networks: int,
        relu: bool,
    ) -> Tensor:
        """A target with one free axis: "(symmetric axes) ρ" times "ρ x'", for each n, e and l.

        Rows that tie nothing add up to a vector along x', which is one more ρ.
        """
        free = f"{row.free_out[0]}'"
        symmetric = tuple(a for a in axes if a != free)
        lengths = {a: self.sizes[a] for a in symmetric} | {"e": self.outputs, "n": networks}
        left, right = ("n", "e", "l", *symmetric, RANK), ("n", "e", "l", RANK, free)
        untied = [_outer(f, term, parameters) for f, term in mixed if not f.row.tied]
        columns = [term for f, term in mixed if f.row.tied]
        weights = [f.outgoing(parameters, row.free_out[0]) for f, _ in mixed if f.row.tied]
        if untied:
            vector = _sum(untied, (free,), networks)  # n e l x'
            columns.append(Named(("l", RANK), vector.new_ones(vector.shape[2], 1)))
            weights.append(Named(("n", "e", "l", free, RANK), vector.unsqueeze(-1)))
        first = torch.cat([c.expand(left, lengths).tensor for c in columns], dim=-1)
        second = torch.cat([w.expand(right, lengths).tensor for w in weights], dim=-2)
        batch, inner = first.shape[:3], first.shape[3:-1]
        a, b = first.flatten(3, -2).flatten(0, 2), second.flatten(0, 2)
        last = axes[-1] == free
        out = torch.bmm(a, b) if last else torch.bmm(b.mT, a.mT)
        if relu:
            out = out.relu_()
        if last:
            return out.view(*batch, *inner, b.shape[-1])
        made = Named(("n", "e", "l", free, *symmetric), out.view(*batch, b.shape[-1], *inner))
        return made.order(("n", "e", "l", *axes)).tensor


def _group(block: Block, members: tuple[Factors, ...]) -> SourceRows:
    row = members[0].row
    product = block.products.get(row.source)
    if product is None:
        return SourceRows(members, (Use(Read(row.source, row.tied, row.free_in), {}),), ())
    uses = []
    first, second = ({i.label for i in factor.indices} for factor in product.factors)
    both = first & second
    for factor in product.factors:
        own = [index.label for index in block.tensors[factor.tensor]]
        called = dict(zip(own, (index.label for index in factor.indices), strict=True))
        read = Read(
            factor.tensor,
            tuple(a for a in own if called[a] in both or called[a] in row.tied),
            tuple(a for a in own if called[a] in row.free_in and called[a] not in both),
        )
        uses.append(Use(read, {a: name for a, name in called.items() if a != name}))
    return SourceRows(members, tuple(uses), tuple(a for a in row.free_in if a in both))


def _weights(
    wanted: Sequence[tuple[Factors, str]],
    parameters: Parameters,
    axis: str,
    everywhere: Mapping[str, int],
) -> Named:
    """The weights of one axis for several rows, one below the other: "(c) l ρ axis"."""
    all_of = [f.incoming(parameters, name).rename({name: axis}) for f, name in wanted]
    with_channels = any("c" in weights.labels for weights in all_of)
    labels = ("c", "l", RANK, axis) if with_channels else ("l", RANK, axis)
    tensors = [weights.expand(labels, everywhere).tensor for weights in all_of]
    return Named(labels, torch.cat(tensors, dim=-2))


def _combined(group: SourceRows, parts: Sequence[Named], parameters: Parameters) -> Named:
    """What a group's rows read of their source, "n c l ρ tied"; no ρ where nothing is weighted."""
    tied = group.rows[0].row.tied
    if len(parts) == 1:
        (whole,) = parts
    else:
        labels = {a for part in parts for a in part.labels}
        first = tuple(a for a in ("n", "c", "l", RANK) if a in labels)
        whole = parts[0].times(parts[1], (*first, *group.last, *tied))
    for place, axis in enumerate(group.last):
        channels = {"c": group.rows[0].inputs}
        weights = _weights([(f, axis) for f in group.rows], parameters, axis, channels)
        whole = whole.times(weights, ("n", "c", "l", RANK, *group.last[place + 1 :], *tied))
    return whole


def _mixed(factors: Factors, feature: Named | None, parameters: Parameters) -> Named:
    """Channels c to e: "n e l (ρ) tied". Where c takes the place of ρ, it is left to the writing.

    ρ is summed where the target has no free axis that could still need it.
    """
    row = factors.row
    if feature is None:
        return factors.mix(parameters) if factors.factored else factors.full(parameters)
    if factors.factored:
        rank = (RANK,) if row.free_out else ()
        return factors.mix(parameters).times(feature, ("n", "e", "l", *rank, *row.tied))
    if row.free_in:
        dim = feature.labels.index("c")
        rest = tuple(a for a in feature.labels if a != "c")
        return Named(rest, feature.tensor.sum(dim)).rename({RANK: "e"})
    if row.free_out:
        return feature.rename({"c": RANK})
    return factors.full(parameters).times(feature, ("n", "e", "l", *row.tied))


def _outer(factors: Factors, term: Named, parameters: Parameters) -> Named:
    """Times the weights of the target's free axes, summed over ρ."""
    row = factors.row
    if RANK not in term.labels:
        return term
    for place, axis in enumerate(row.free_out):
        weights = factors.outgoing(parameters, axis)
        found = dict.fromkeys((*term.labels, *weights.labels))
        last = place == len(row.free_out) - 1
        term = term.times(weights, tuple(a for a in found if not (last and a == RANK)))
    return term


def _sum(terms: Sequence[Named], axes: tuple[str, ...], networks: int) -> Tensor:
    """The sum "n e l axes" of terms that vary along different axes, small ones first."""
    labels = ("n", "e", "l", *axes)
    views = [term.expand(labels, {}).tensor for term in terms]
    total = reduce(torch.add, sorted(views, key=Tensor.numel))
    return total.expand(networks, *total.shape[1:])
