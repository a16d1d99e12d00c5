"""The layer as few dense contractions: rows with the same tied axes are one matmul.

For a set of tied axes S, every source that has S (pooled over its other symmetric axes) is a row
into every target that has S. So the rows of S together are one dense matrix, from all entries
(c, free axes) of these sources to all entries (e, free axes) of these targets: 45 rows of the
paper's block become 9 contractions.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from transformer_nfn.layers.assemble import Term, assemble
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes
from transformer_nfn.space import WeightBatch


@dataclass(frozen=True)
class Side:
    """A source or target of a group: its axes, the free ones, and where it stands in the matrix."""

    name: str
    axes: tuple[str, ...]
    free: tuple[str, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Group:
    """All rows with the same tied axes: one matrix "l F T" from the sources to the targets."""

    tied: tuple[str, ...]
    sources: tuple[Side, ...]
    targets: tuple[Side, ...]

    @property
    def name(self) -> str:
        """Its tied axes and targets; part of the parameter's name in a state dict."""
        return "_".join(self.tied or ["none"]) + "__" + "_".join(t.name for t in self.targets)

    @property
    def shape(self) -> tuple[int, int]:
        """F, the entries of its sources, and T, the entries of its targets."""
        return self.sources[-1].stop, self.targets[-1].stop

    @property
    def mixes_channels_only(self) -> bool:
        """Whether no free axis takes part, so that the matrix is from c to e channels."""
        return bool(self.tied) and not any(s.free for s in (*self.sources, *self.targets))


class Plan:
    """How to run the rows of a layer. Holds no parameters."""

    def __init__(self, rows: Sequence[Row], sizes: Sizes, inputs: int, outputs: int) -> None:
        """Group the rows for the given sizes and numbers of channels."""
        self.sizes = sizes
        self.inputs = inputs
        self.outputs = outputs
        self.group_of: dict[str, Group] = {}
        for members in _by_ties(rows):
            group = Group(
                members[0].tied,
                self._sides({r.source: (r.source_axes, r.free_in) for r in members}, inputs),
                self._sides({r.target: (r.target_axes, r.free_out) for r in members}, outputs),
            )
            self.group_of |= {row.name: group for row in members}
        self.groups = tuple(dict.fromkeys(self.group_of.values()))
        # A product is never made along an axis that all its rows sum over.
        self._never_needed = {
            name: set.intersection(*(set(row.summed) for row in rows if row.source == name))
            for name in {row.source for row in rows}
        }

    def _sides(
        self, tensors: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]], channels: int
    ) -> tuple[Side, ...]:
        sides, start = [], 0
        for name, (axes, free) in tensors.items():
            own = 1 if name == CONSTANT else channels
            stop = start + own * prod(map(self.sizes, free))
            sides.append(Side(name, axes, free, start, stop))
            start = stop
        return tuple(sides)

    def row_view(self, row: Row, matrix: Tensor) -> Tensor:
        """The parameter of one row, "l" and the axes of `Row.parameter`, as a view of "l F T"."""
        group = self.group_of[row.name]
        source = next(side for side in group.sources if side.name == row.source)
        target = next(side for side in group.targets if side.name == row.target)
        channel = [] if row.source == CONSTANT else [self.inputs]
        ins = [*channel, *map(self.sizes, row.free_in)]
        outs = [self.outputs, *map(self.sizes, row.free_out)]
        part = matrix[:, source.start : source.stop, target.start : target.stop]
        part = part.view(matrix.shape[0], *ins, *outs)
        first_out = 1 + len(ins)
        return part.permute(0, *range(first_out, part.dim()), *range(1, first_out))

    def run(
        self, batch: WeightBatch, matrices: Sequence[Tensor], relu: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """The targets "n e l axes", those named in `relu` after ReLU.

        Args:
            batch: The weights.
            matrices: For each of `groups` its matrix "l F T".
            relu: Targets to which ReLU is applied.
        """
        pools = _Pools(batch, self._never_needed)
        terms: dict[str, list[Term]] = {}
        for group, matrix in zip(self.groups, matrices, strict=True):
            for side, term in self._contract(group, matrix, pools):
                terms.setdefault(side.name, []).append(term)
        return {name: assemble(parts, relu=name in relu) for name, parts in terms.items()}

    def _contract(
        self, group: Group, matrix: Tensor, pools: "_Pools"
    ) -> Iterator[tuple[Side, Term]]:
        """The term of each target: one matmul, or one for each target where terms are large."""
        widths = [side.stop - side.start for side in group.targets]
        results: Sequence[Tensor]
        if not group.tied:
            results = torch.split(pools.features_last(group) @ matrix, widths, dim=-1)
        elif group.mixes_channels_only:
            # Channels stand before the tied axes, as in the weights themselves: no transpose.
            columns = pools.channels_first(group)  # l n c tied
            parts = torch.split(matrix.mT.unsqueeze(1), widths, dim=-2)
            results = [part @ columns for part in parts]
        else:
            rows = pools.features_last(group)  # l (n tied) F
            results = [rows @ part for part in torch.split(matrix, widths, dim=-1)]
        lengths = {label: self.sizes(label) for label in group.tied}
        lengths |= {"l": matrix.shape[0], "n": pools.batch.networks, "e": self.outputs}
        for side, raw in zip(group.targets, results, strict=True):
            if group.mixes_channels_only:
                dims = ("l", "n", "e", *group.tied)
            else:
                dims = ("l", "n", *group.tied, "e", *side.free)
            shape = tuple(lengths[d] if d in lengths else self.sizes(d) for d in dims)
            yield side, Term(group.tied, raw, dims, shape, side.axes)


def _by_ties(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that tie the same axes between the same tensors: each list is dense."""
    lists: dict[tuple[tuple[str, ...], frozenset[str]], list[Row]] = {}
    for target in dict.fromkeys(row.target for row in rows):
        for tied in dict.fromkeys(row.tied for row in rows if row.target == target):
            members = [row for row in rows if row.target == target and row.tied == tied]
            key = (tied, frozenset(row.source for row in members))
            lists.setdefault(key, []).extend(members)
    return list(lists.values())


class _Pools:
    """Sources pooled over symmetric axes, each computed once for all groups of a layer."""

    def __init__(self, batch: WeightBatch, never_needed: Mapping[str, Collection[str]]) -> None:
        self.batch = batch
        self._never_needed = never_needed
        self._done: dict[str, dict[tuple[str, ...], Tensor]] = {}

    def pooled(self, side: Side, keep: Collection[str]) -> tuple[tuple[str, ...], Tensor]:
        """Labels and tensor "n c l labels" of a source, summed over all axes but `keep`."""
        labels = tuple(label for label in side.axes if label in keep)
        done = self._done.setdefault(side.name, {})
        if not done:
            kept = tuple(a for a in side.axes if a not in self._never_needed[side.name])
            if side.name in self.batch.tensors:
                done[side.axes] = self.batch[side.name]
            else:
                done[kept] = self.batch.product(side.name, kept)
        if labels not in done:
            # From the smallest that has what is needed.
            known, tensor = min(
                ((k, t) for k, t in done.items() if set(labels) <= set(k)),
                key=lambda item: item[1].numel(),
            )
            dims = [3 + i for i, label in enumerate(known) if label not in labels]
            done[labels] = tensor.sum(dims)
        return labels, done[labels]

    def features_last(self, group: Group) -> Tensor:
        """All sources of a group as a matrix for each block, "l (n tied) F"."""
        parts = []
        for side in group.sources:
            if side.name == CONSTANT:
                shape = (self.batch.blocks, self.batch.networks, 1)
                parts.append(torch.ones(shape, dtype=self.batch.dtype, device=self.batch.device))
                continue
            labels, tensor = self.pooled(side, {*group.tied, *side.free})
            place = {label: 3 + i for i, label in enumerate(labels)}
            order = [2, 0, *(place[t] for t in group.tied), 1, *(place[f] for f in side.free)]
            ordered = tensor.permute(order)  # l n tied c free
            parts.append(ordered.flatten(2 + len(group.tied)).flatten(1, -2))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def channels_first(self, group: Group) -> Tensor:
        """All sources of a group that only mixes channels, "l n c tied"."""
        parts = []
        for side in group.sources:
            labels, tensor = self.pooled(side, group.tied)
            place = {label: 3 + i for i, label in enumerate(labels)}
            parts.append(tensor.permute(2, 0, 1, *(place[t] for t in group.tied)).flatten(3))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
