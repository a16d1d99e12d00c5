"""Rows grouped by their tied axes: the paper's 45 rows become 14 matmuls in 9 groups."""

from collections.abc import Collection, Mapping, Sequence
from math import prod

from torch import Tensor

from transformer_nfn.layers.dense.contraction import Contraction, Group, Side, Wiring
from transformer_nfn.layers.dense.products import head_product
from transformer_nfn.layers.rows import CONSTANT, Row, Sizes
from transformer_nfn.space import WeightBatch


class Plan:
    """How to run the rows of a layer. Holds no parameters."""

    def __init__(self, rows: Sequence[Row], sizes: Sizes, inputs: int, outputs: int) -> None:
        """Group the rows for the given sizes and numbers of channels."""
        self.sizes = sizes
        self.inputs = inputs
        self.outputs = outputs
        # Only a target with linear axes has no untied row, and only such are factors of products.
        untied = {row.target for row in rows if not row.tied}
        groups = [
            Group(
                members[0].tied,
                tuple(map(sizes, members[0].tied)),
                self._sides({row.source: row.free_in for row in members}, inputs),
                self._sides({row.target: row.free_out for row in members}, outputs),
                channels_apart=members[0].target not in untied,
            )
            for members in _by_ties(rows)
        ]
        sources = {}
        for row in rows:
            if row.source != CONSTANT:
                # A product is never made along an axis that all its rows sum over.
                summed = [set(r.summed) for r in rows if r.source == row.source]
                unused = set.intersection(*summed) if row.contracted else set()
                sources[row.source] = tuple(a for a in row.source_axes if a not in unused)
        targets = {row.target: row.target_axes for row in rows}
        matrices = [
            (number, side)
            for target in targets
            for number, group in sorted(enumerate(groups), key=lambda item: len(item[1].tied))
            for side in group.targets
            if side.name == target
        ]
        self.wiring = Wiring(tuple(groups), sources, targets, tuple(matrices))
        #: For each matrix, by the name of its parameter, its group and its target.
        self.matrices = {
            matrix_name(side.name, groups[number].tied): (groups[number], side)
            for number, side in matrices
        }

    def _sides(self, free: Mapping[str, tuple[str, ...]], channels: int) -> tuple[Side, ...]:
        sides, start = [], 0
        for name, labels in free.items():
            shape = (1 if name == CONSTANT else channels, *map(self.sizes, labels))
            sides.append(Side(name, labels, shape, start, start + prod(shape)))
            start += prod(shape)
        return tuple(sides)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the matrices by name, without "l"."""
        return {name: self.matrix_shape(name) for name in self.matrices}

    def matrix_shape(self, name: str) -> tuple[int, int]:
        """F, the entries of the sources, and T, the entries of the target."""
        group, target = self.matrices[name]
        return group.sources[-1].stop, prod(target.shape)

    def row_parameter(self, row: Row, matrices: Mapping[str, Tensor]) -> Tensor:
        """The parameter of one row, "l" and the axes of `Row.parameter`, as a view of "l F T"."""
        matrix = matrices[matrix_name(row.target, row.tied)]
        group, target = self.matrices[matrix_name(row.target, row.tied)]
        source = next(side for side in group.sources if side.name == row.source)
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
        sources = [
            batch[name] if name in batch.tensors else head_product(batch, name, axes)
            for name, axes in self.wiring.sources.items()
        ]
        ordered = [matrices[name] for name in self.matrices]
        targets = Contraction.apply(  # type: ignore[no-untyped-call]
            self.wiring, frozenset(relu), *sources, *ordered
        )
        return dict(zip(self.wiring.targets, targets, strict=True))


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
