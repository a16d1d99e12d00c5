"""The rows are all there is: their parameters count the whole null space."""

import pytest

from tests.layers.oracle import ansatz, dimension
from transformer_nfn.layers import EquivariantLayer, InvariantLayer, equivariant_rows
from transformer_nfn.space import GATED, GROUPED, PAPER, RESIDUAL, BlockSpec

SPECS = [
    BlockSpec(PAPER, D=2, heads=2, D_k=1, D_v=2, D_A=3),
    BlockSpec(PAPER, D=3, heads=3, D_k=2, D_v=1, D_A=2),
    BlockSpec(RESIDUAL, D=2, heads=2, D_k=1, D_v=2, D_A=3),
    BlockSpec(RESIDUAL, D=1, heads=3, D_k=2, D_v=1, D_A=2),
    BlockSpec(GATED, D=2, heads=2, D_k=1, D_v=2, D_A=3),
    BlockSpec(GATED, D=3, heads=3, D_k=2, D_v=1, D_A=2),
    BlockSpec(GROUPED, D=2, groups=2, heads_per_group=3, D_k=1, D_v=2, D_A=2),
]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_equivariant_layer_has_every_equivariant_map(spec: BlockSpec) -> None:
    sources = ansatz(spec.block)
    null_space = sum(
        dimension(spec, target, source)
        for target in spec.block.tensors.values()
        for source in sources.values()
    )
    layer = EquivariantLayer(spec, blocks=1, inputs=1, outputs=1)
    assert layer.parameter_count == null_space


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_invariant_layer_has_every_invariant_map(spec: BlockSpec) -> None:
    null_space = sum(dimension(spec, (), source) for source in ansatz(spec.block).values())
    layer = InvariantLayer(spec, blocks=1, inputs=1, outputs=1)
    assert layer.parameter_count == null_space


@pytest.mark.parametrize("label", ["h", "k", "v", "r", "a"])
def test_with_a_smaller_group_there_are_more_maps(label: str) -> None:
    """Negative control: the oracle sees each part of the group, the heads in QK and VO too."""
    spec = SPECS[0]
    sources = ansatz(spec.block)
    count = sum(
        dimension(spec, target, source, leave_out=label)
        for target in spec.block.tensors.values()
        for source in sources.values()
    )
    assert count > EquivariantLayer(spec, blocks=1, inputs=1, outputs=1).parameter_count


def test_pair_by_pair() -> None:
    """Not only the sum: each pair of tensors has the rows it should."""
    spec = SPECS[1]
    rows = equivariant_rows(PAPER)
    for target, target_axes in PAPER.tensors.items():
        for source, source_axes in ansatz(PAPER).items():
            pair = [row for row in rows if (row.target, row.source) == (target, source)]
            free = [spec.size(a) for row in pair[:1] for a in (*row.free_out, *row.free_in)]
            count = len(pair)
            for size in free:
                count *= size
            assert dimension(spec, target_axes, source_axes) == count, (target, source)
