"""Rows grouped by their tied axes: the paper's 45 rows become 14 matmuls on 9 sets of features."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from transformer_nfn.layers.dense.products import head_product
from transformer_nfn.layers.named import Named, Sums
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes
from transformer_nfn.space import WeightBatch


@dataclass(frozen=True)
class Entries:
    """What one tensor has at each index of the tied axes.

    Attributes:
        name: The tensor, the product or `CONSTANT`.
        free: Its free axes.
        shape: Its channels (1 for a constant) and the lengths of its free axes.
        start: Where they begin among the features.
        stop: Where they end.
    """

    name: str
    free: tuple[str, ...]
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class TiedRows:
    """All rows with the same tied axes: for each target one matrix "l F T" from all sources.

    Every source that has the tied axes, summed over its other symmetric axes, is a row into every
    target that has them, so the matrices are dense: F are the entries (c, free axes) of the
    sources side by side, T those (e, free axes) of the target.

    Attributes:
        tied: The tied axes.
        sources: What they read.
        targets: What they write.
    """

    tied: tuple[str, ...]
    sources: tuple[Entries, ...]
    targets: tuple[Entries, ...]

    @property
    def mixes_channels_only(self) -> bool:
        """Whether no free axis takes part, so that the matrix is from c to e channels."""
        return bool(self.tied) and not any(s.free for s in (*self.sources, *self.targets))

    def features(self, sums: Sums) -> Tensor:
        """All sources side by side: "l (n tied) F"; "l n c (tied)" where only channels mix.

        The second leaves channels where the weights have them, before the tied axes.
        """
        if self.mixes_channels_only:
            wanted = ("l", "n", "c", *self.tied)
            parts = [sums.over(source.name, wanted).tensor.flatten(3) for source in self.sources]
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        parts = [
            sums.over(s.name, ("l", "n", *self.tied, "c", *s.free)).matrices(
                ("l",), ("n", *self.tied), ("c", *s.free)
            )
            for s in self.sources
            if s.name != CONSTANT
        ]
        if self.sources[-1].name == CONSTANT:
            parts.append(parts[0].new_ones(*parts[0].shape[:2], 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def write(
        self, target: Entries, features: Tensor, matrix: Tensor, lengths: Mapping[str, int]
    ) -> Named:
        """What these rows add to a target, along all axes that they vary along."""
        tied = [lengths[a] for a in self.tied]
        if self.mixes_channels_only:
            mixed = torch.matmul(matrix.mT.unsqueeze(1), features)  # l n e (tied)
            shape = (*mixed.shape[:3], *tied)
            return Named(("l", "n", "e", *self.tied), mixed.reshape(shape))
        shape = (len(matrix), lengths["n"], *tied, *target.shape)
        made = torch.bmm(features, matrix).view(shape)
        return Named(("l", "n", *self.tied, "e", *target.free), made)


class Plan:
    """How to run the rows of a layer. Holds no parameters."""

    def __init__(self, rows: Sequence[Row], sizes: Sizes, inputs: int, outputs: int) -> None:
        """Group the rows for the given sizes and numbers of channels."""
        self.sizes = sizes
        self.inputs = inputs
        self.outputs = outputs
        self.groups = tuple(
            TiedRows(
                members[0].tied,
                self._entries({row.source: row.free_in for row in members}, inputs),
                self._entries({row.target: row.free_out for row in members}, outputs),
            )
            for members in _by_ties(rows)
        )
        #: Axes of the sources and targets by name.
        self.sources: dict[str, tuple[str, ...]] = {}
        for row in rows:
            if row.source != CONSTANT:
                # A product is never made along an axis that all its rows sum over.
                summed = [set(r.summed) for r in rows if r.source == row.source]
                unused = set.intersection(*summed) if row.contracted else set()
                self.sources[row.source] = tuple(a for a in row.source_axes if a not in unused)
        self.targets = {row.target: row.target_axes for row in rows}
        #: For each matrix, by the name of its parameter, which rows it is of, and its target.
        self.matrices = {
            matrix_name(entries.name, group.tied): (number, entries)
            for target in self.targets
            for number, group in sorted(enumerate(self.groups), key=lambda one: len(one[1].tied))
            for entries in group.targets
            if entries.name == target
        }

    def _entries(self, free: Mapping[str, tuple[str, ...]], channels: int) -> tuple[Entries, ...]:
        found, start = [], 0
        for name, labels in free.items():
            shape = (1 if name == CONSTANT else channels, *(self.sizes[a] for a in labels))
            found.append(Entries(name, labels, shape, start, start + prod(shape)))
            start += prod(shape)
        return tuple(found)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the matrices by name, without "l": entries of the sources, of the target."""
        return {
            name: (self.groups[number].sources[-1].stop, prod(target.shape))
            for name, (number, target) in self.matrices.items()
        }

    def row_parameter(self, row: Row, matrices: Mapping[str, Tensor]) -> Tensor:
        """The parameter of one row, "l" and the axes of `Row.parameter`, as a view of "l F T"."""
        matrix = matrices[matrix_name(row.target, row.tied)]
        number, target = self.matrices[matrix_name(row.target, row.tied)]
        sources = self.groups[number].sources
        source = next(entries for entries in sources if entries.name == row.source)
        ins = source.shape[1:] if row.source == CONSTANT else source.shape
        part = matrix[:, source.start : source.stop]
        part = part.view(matrix.shape[0], *ins, *target.shape)
        first_out = 1 + len(ins)
        return part.permute(0, *range(first_out, part.dim()), *range(1, first_out))

    def run(
        self, batch: WeightBatch, matrices: Mapping[str, Tensor], relu: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """The targets "n e l axes", those named in `relu` after ReLU.

        Args:
            batch: The weights.
            matrices: The matrices "l F T" by name.
            relu: Targets to which ReLU is applied.
        """
        sums = Sums(
            {
                name: Named(("n", "c", "l", *axes), batch[name])
                if name in batch.tensors
                else head_product(batch, name, axes)
                for name, axes in self.sources.items()
            }
        )
        features = [group.features(sums) for group in self.groups]
        lengths = {**self.sizes, "n": batch.networks}
        added: dict[str, list[Named]] = {target: [] for target in self.targets}
        for name, (number, target) in self.matrices.items():
            made = self.groups[number].write(target, features[number], matrices[name], lengths)
            added[target.name].append(made)
        return {
            target: _total(added[target], ("n", "e", "l", *axes), target in relu)
            for target, axes in self.targets.items()
        }


def _total(terms: Sequence[Named], labels: tuple[str, ...], relu: bool) -> Tensor:
    """Their sum; those with more tied axes come later, and the last varies along all of them.

    Each is added to the next that varies along all of its axes. So few additions are of the full
    size, and all of them have one order of memory, that of the last.
    """
    views = [term.expand(labels, {}).tensor for term in terms]
    for i, term in enumerate(terms[:-1]):
        home = next(j for j in range(i + 1, len(terms)) if set(term.labels) <= set(terms[j].labels))
        views[home] = views[home] + views[i]
    if not relu:
        return views[-1]
    return views[-1].relu_() if len(terms) > 1 else views[-1].relu()  # nothing else reads a sum


def matrix_name(target: str, tied: tuple[str, ...]) -> str:
    """The name of the matrix that holds the rows into a target with these tied axes."""
    return f"{target}__{'_'.join(tied) or 'none'}"


def _by_ties(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that tie the same axes between the same tensors: each list is dense."""
    lists: dict[tuple[tuple[str, ...], frozenset[str]], list[Row]] = {}
    for target in dict.fromkeys(row.target for row in rows):
        for tied in dict.fromkeys(row.tied for row in rows if row.target == target):
            members = [row for row in rows if row.target == target and row.tied == tied]
            key = (tied, frozenset(row.source for row in members))
            lists.setdefault(key, []).extend(members)
    return list(lists.values())
