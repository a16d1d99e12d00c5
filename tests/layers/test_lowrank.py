from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.layers.largest import Largest
from tests.strategies import batches, generator, seeds
from transformer_nfn.group import assert_equivariant, assert_invariant, relative_error
from transformer_nfn.layers import (
    BudgetError,
    EquivariantLayer,
    InvariantLayer,
    Row,
    RowLayer,
    equivariant_rows,
    invariant_rows,
)
from transformer_nfn.layers.lowrank.steps import LowRank
from transformer_nfn.space import (
    BLOCKS,
    PAPER,
    RESIDUAL,
    BlockSpec,
    ShapeError,
    WeightBatch,
    declare,
    free,
    linear,
    permuted,
)

EXACT = 1e-12
few = st.integers(1, 3)

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=6)
BATCH = WeightBatch.random(
    SPEC, networks=2, channels=2, blocks=2, generator=generator(0), dtype=torch.float64
)


def equivariant(
    batch: WeightBatch, rank: int, e: int, seed: int, relu: bool = False
) -> EquivariantLayer:
    layer = EquivariantLayer(
        batch.spec, blocks=batch.blocks, inputs=batch.channels, outputs=e, relu=relu, rank=rank
    )
    return filled(layer, seed)


def invariant(batch: WeightBatch, rank: int, e: int, d: int, seed: int) -> InvariantLayer:
    layer = InvariantLayer(
        batch.spec, blocks=batch.blocks, inputs=batch.channels, outputs=e, width=d, rank=rank
    )
    return filled(layer, seed)


def filled(layer: Any, seed: int) -> Any:
    """Float64, and no parameter zero: also constants must be equivariant."""
    layer = layer.double()
    g = generator(seed)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=g)
    return layer


@given(batches(), few, few, seeds, st.booleans())
def test_equivariant_layer_is_equivariant(
    batch: WeightBatch, rank: int, e: int, seed: int, relu: bool
) -> None:
    layer = equivariant(batch, rank, e, seed, relu)
    with torch.no_grad():
        assert_equivariant(layer, batch, generator=generator(seed), tolerance=1e-10)


@given(batches(), few, few, few, seeds)
def test_invariant_layer_is_invariant(
    batch: WeightBatch, rank: int, e: int, d: int, seed: int
) -> None:
    layer = invariant(batch, rank, e, d, seed)
    with torch.no_grad():
        assert layer(batch).shape == (batch.networks, e, batch.blocks, d)
        assert_invariant(layer, batch, generator=generator(seed), tolerance=1e-10)


def compare(batch: WeightBatch, rank: int, e: int, seed: int, relu: bool) -> None:
    """Two layers and the invariant one against the reference with Φ multiplied out."""
    batch = batch.map(lambda tensor: tensor.requires_grad_())
    first = equivariant(batch, rank, e, seed, relu)
    middle, expected_middle = first(batch), first.reference(batch)
    second = equivariant(middle, rank, 2, seed + 1, relu)
    middle, expected_middle = second(middle), second.reference(expected_middle)
    assert relative_error(middle, expected_middle) <= EXACT
    last = invariant(middle, rank, 3, 1 + seed % 2, seed + 2)
    got, expected = last(middle), last.reference(expected_middle)
    assert relative_error(got, expected) <= EXACT
    leaves = [*batch.tensors.values()]
    leaves += [p for layer in (first, second, last) for p in layer.parameters()]

    def gradients(value: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(value.sin().sum(), leaves)

    # sin at large arguments would turn rounding into noise.
    scale = 1 / expected.detach().abs().max()
    found, wanted = gradients(got * scale), gradients(expected * scale)
    flat = [torch.cat([g.flatten() for g in some]) for some in (found, wanted)]
    assert relative_error(*flat) <= EXACT
    for a, b in zip(found, wanted, strict=True):
        assert relative_error(a, b) <= 1e-10  # that of one factor can be what cancelling leaves


@given(batches(), few, few, seeds, st.booleans())
def test_it_equals_the_reference_with_gradients(
    batch: WeightBatch, rank: int, e: int, seed: int, relu: bool
) -> None:
    compare(batch, rank, e, seed, relu)


#: What no shipped block has: two free axes on a tensor and none on another, a product of a tensor
#: with itself, one that keeps a free axis of both factors, one that sums a free axis.
ODD = declare(
    "odd",
    axes={
        "x": free("D"),
        "y": free("D"),
        "z": free("E"),
        "h": permuted("heads"),
        "k": linear("D_k", per="h"),
        "a": permuted("D_A"),
        "b": permuted("D_B"),
    },
    tensors={
        "Q": "h x k",
        "K": "h x k*",
        "A": "x a",
        "W": "x z",
        "T": "x b z a",
        "P": "b a",
        "s": "z",
    },
    products={
        "QK": "Q h x k, K h y k* -> x y",
        "diagonal": "Q h x k, K h x k* -> x",
        "trace": "Q h x k, K h x k* ->",
        "head": "Q h x k, K h y k* -> h x",
        "gram": "A x a, A y a -> x y",
        "both": "A x a, T x b z a -> x z a",
        "neurons": "A x a, P b a -> a b",
    },
)


@settings(max_examples=5)
@given(few, few, seeds, st.booleans())
def test_blocks_that_users_may_declare(rank: int, e: int, seed: int, relu: bool) -> None:
    spec = BlockSpec(ODD, D=4, E=5, heads=2, D_k=3, D_A=6, D_B=7)
    batch = WeightBatch.random(
        spec, networks=2, channels=2, blocks=2, generator=generator(seed), dtype=torch.float64
    )
    compare(batch, rank, e, seed, relu)
    layer = equivariant(batch, rank, e, seed, relu)
    with torch.no_grad():
        assert_equivariant(layer, batch, generator=generator(seed), tolerance=1e-10)


def test_a_parameter_is_the_sum_of_products() -> None:
    layer = equivariant(BATCH, 3, 2, 0)
    part = {
        name.rpartition("__")[2]: p
        for name, p in layer.matrices.items()
        if name.startswith("B__QK")
    }
    phi = torch.einsum(
        "lrec,lru,lrx,lry->leucxy", part["mix"], part["out_x"], part["in_x"], part["in_y"]
    )
    views = layer.row_parameters()
    assert relative_error(views["B <- QK x y"], phi) <= EXACT
    for row in layer.rows:
        assert views[row.name].shape == (2, *row.parameter_shape(SPEC.lengths, 2, 2))
        place = views[row.name].data_ptr()
        stored = [name for name, p in layer.matrices.items() if p.data_ptr() == place]
        assert bool(stored) == (len(row.free_out) + len(row.free_in) < 2)


@pytest.mark.parametrize("name", ["I <- A x [a]", "I <- B [a] x", "I <- bA [a]"])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_planted_factor_along_a_permuted_axis_is_caught(name: str, wrong: bool) -> None:
    spec = BlockSpec(RESIDUAL, D=4, heads=2, D_k=3, D_v=2, D_A=6)
    batch = WeightBatch.random(spec, networks=2, generator=generator(0), dtype=torch.float64)
    rows = list(invariant_rows(RESIDUAL))
    place = next(i for i, row in enumerate(rows) if row.name == name)
    if wrong:
        right = rows[place]
        axes = tuple(a for a in right.source_axes if a in (*right.free_in, "a"))
        rows[place] = replace(right, summed=(), free_in=axes)
    plan = LowRank(rows, RESIDUAL, {**spec.lengths, "d": 2}, 1, 3, rank=2)
    g = generator(1)
    parameters = {
        name: torch.randn(1, *shape, generator=g, dtype=torch.float64)
        for name, shape in plan.shapes.items()
    }

    def check() -> None:
        assert_invariant(lambda u: plan.run(u, parameters)["I"], batch, generator=generator(2))

    if wrong:
        with pytest.raises(AssertionError, match="not invariant"):
            check()
    else:
        check()


def test_heads_that_do_not_meet_their_dual_are_caught() -> None:
    """(Σ_k uᵀQ)(Σ_k Kᵀw) in place of the sum over k of both."""
    layer = equivariant(BATCH, 2, 2, 0)
    assert isinstance(layer.plan, LowRank)
    assert_equivariant(layer, BATCH, generator=generator(1))
    place, group = next(
        (i, g) for i, g in enumerate(layer.plan.groups) if g.rows[0].row.source == "QK"
    )
    uses = tuple(replace(use, read=use.read._replace(stay=("h",))) for use in group.uses)
    groups = list(layer.plan.groups)
    groups[place] = replace(group, uses=uses)
    for i in range(2):
        layer.plan.reads[group.uses[i].read].remove((place, i))
        layer.plan.reads[uses[i].read] = [(place, i)]
    layer.plan.groups = tuple(groups)
    with pytest.raises(AssertionError, match=r"not equivariant: relative error .* in A"):
        assert_equivariant(layer, BATCH, generator=generator(1))


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_no_operation_makes_a_tensor_of_D_by_D(block: str) -> None:
    """Sizes at which weights and channels of weights are smaller than D × D."""
    axes = BLOCKS[block].axes.values()
    sizes = {"D": 256, "D_k": 4, "D_v": 4, "D_A": 16}
    sizes |= {axis.symbol: 2 for axis in axes if axis.symbol not in sizes}
    spec = BlockSpec(BLOCKS[block], **sizes)
    batch = WeightBatch.random(spec, networks=1, generator=generator(0))
    outputs = 2
    largest = outputs * max(tensor.numel() for tensor in batch.tensors.values())
    assert largest < 256 * 256 / 4
    first = EquivariantLayer(spec, blocks=1, inputs=1, outputs=outputs, relu=True, rank=3)
    second = EquivariantLayer(spec, blocks=1, inputs=2, outputs=outputs, relu=True, rank=3)
    last = InvariantLayer(spec, blocks=1, inputs=2, outputs=3, rank=3)
    with Largest() as mode:
        last(second(first(batch))).sum().backward()
    # Coefficients for each channel are the only other thing: "c ρ x", not "x y".
    assert mode.elements < 256 * 256 / 2
    exact = InvariantLayer(spec, blocks=1, inputs=1, outputs=1)
    with Largest() as mode:
        exact(batch)
    assert mode.elements >= 256 * 256  # the negative control


def test_parameters_grow_with_D_and_not_faster() -> None:
    def count(D: int) -> int:
        spec = BlockSpec(RESIDUAL, D=D, heads=12, D_k=64, D_v=64, D_A=4 * D)
        with torch.device("meta"):
            return EquivariantLayer(spec, blocks=1, inputs=3, outputs=10, rank=4).parameter_count

    assert count(300) - count(200) == count(200) - count(100) > 0
    assert count(768) < 2_000_000


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_each_parameter_starts_with_the_variance_of_the_exact_layer(block: str) -> None:
    symbols = dict.fromkeys(axis.symbol for axis in BLOCKS[block].axes.values())
    spec = BlockSpec(BLOCKS[block], **dict(zip(symbols, (24, 3, 5, 6, 10, 7), strict=False)))
    settings = {"blocks": 40, "inputs": 3, "outputs": 5}
    for kind in (EquivariantLayer, InvariantLayer):
        layer = kind(spec, **settings, rank=6)  # type: ignore[arg-type]
        rivals = [row.target for row in layer.rows if row.source != "1"]
        for row, phi in zip(layer.rows, layer.row_parameters().values(), strict=True):
            if row.source == "1":
                assert (phi == 0).all()
            else:
                wanted = 1 / (row.fan_in(layer.plan.sizes, 3) * rivals.count(row.target))
                assert 0.7 < phi.square().mean().item() / wanted < 1.4, row.name


def test_initial_scale_keeps_variance() -> None:
    spec = BlockSpec(PAPER, D=24, heads=3, D_k=10, D_v=12, D_A=40)
    batch = WeightBatch.random(spec, networks=20, channels=2, blocks=4, generator=generator(0))
    sizes = {"blocks": 4, "inputs": 2, "outputs": 30, "rank": 8}
    layer = EquivariantLayer(spec, **sizes, generator=generator(1))
    with torch.no_grad():
        rms = layer(batch).rms()
        vector = InvariantLayer(spec, **sizes, width=8, generator=generator(1))(batch)
    assert all(0.7 < value < 1.4 for value in rms.values()), rms
    assert 0.7 < vector.square().mean().sqrt() < 1.4


def test_initial_parameters_follow_the_generator() -> None:
    def draw(seed: int) -> Tensor:
        layer = EquivariantLayer(
            SPEC, blocks=1, inputs=1, outputs=1, rank=2, generator=generator(seed)
        )
        return torch.cat([p.flatten() for p in layer.parameters()])

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


@pytest.mark.parametrize("rank", [None, 2])
def test_blocks_can_be_run_one_at_a_time(rank: int | None) -> None:
    first = EquivariantLayer(SPEC, blocks=2, inputs=2, outputs=3, relu=True, rank=rank)
    last = InvariantLayer(SPEC, blocks=2, inputs=3, outputs=2, rank=rank)
    filled(first, 0), filled(last, 1)
    whole = last(first(BATCH))
    some = [BATCH.select(blocks=slice(i, i + 1)) for i in range(2)]
    parts = [last(first(some[i], first.by_block()[i]), last.by_block()[i]) for i in range(2)]
    assert relative_error(torch.cat(parts, dim=2), whole) <= EXACT
    parameters = [*first.parameters(), *last.parameters()]
    wanted = torch.autograd.grad(whole.sum(), parameters)
    got = torch.autograd.grad(torch.cat(parts, dim=2).sum(), parameters)
    assert all(relative_error(a, b) <= EXACT for a, b in zip(got, wanted, strict=True))
    with pytest.raises(ShapeError, match="is for 1 blocks"):
        first(BATCH, first.by_block()[0])


def test_many_blocks_and_no_network() -> None:
    spec = BlockSpec(PAPER, D=16, heads=2, D_k=8, D_v=8, D_A=32)
    layer = EquivariantLayer(spec, blocks=30, inputs=1, outputs=2, relu=True, rank=2)
    last = InvariantLayer(spec, blocks=30, inputs=2, outputs=2, rank=2)
    batch = WeightBatch.random(spec, networks=2, blocks=30, generator=generator(0))
    assert last(layer(batch)).shape == (2, 2, 30, 1)
    assert relative_error(layer(batch), layer.reference(batch)) < 1e-5
    assert last(layer(batch[:0])).shape == (0, 2, 30, 1)


def test_the_budget_counts_factors() -> None:
    spec = BlockSpec(PAPER, D=768, heads=12, D_k=64, D_v=64, D_A=3072)
    sizes = {"blocks": 1, "inputs": 1, "outputs": 10}
    with pytest.raises(BudgetError, match="set rank=8"):
        EquivariantLayer(spec, **sizes)
    layer = EquivariantLayer(spec, **sizes, rank=8)
    count = layer.parameter_count
    assert EquivariantLayer(spec, **sizes, rank=8, max_parameters=count).rank == 8
    with pytest.raises(BudgetError, match=r"(?s)a layer of rank 8 .* a lower rank"):
        EquivariantLayer(spec, **sizes, rank=8, max_parameters=count - 1)
    with pytest.raises(BudgetError):
        EquivariantLayer(spec, **sizes, rank=10**18)


def test_a_rank_is_at_least_one_and_shown() -> None:
    with pytest.raises(ShapeError, match="got 0"):
        EquivariantLayer(SPEC, blocks=1, inputs=1, outputs=1, rank=0)
    layer: RowLayer = EquivariantLayer(SPEC, blocks=1, inputs=1, outputs=1, rank=2)
    assert "45 rows, rank 2, " in repr(layer)


def test_rows_with_one_free_axis_or_none_are_stored_in_full() -> None:
    rows: Sequence[Row] = equivariant_rows(PAPER)
    layer = EquivariantLayer(SPEC, blocks=2, inputs=2, outputs=3, rank=2)
    full = {name for name in layer.matrices if name.endswith("__full")}
    assert len(full) == sum(len(row.free_out) + len(row.free_in) < 2 for row in rows)
    assert layer.matrices["A__VO__r__full"].shape == (2, 3, 2, 4)


def test_a_free_axis_of_length_1_asks_for_no_factors() -> None:
    """D' = 1: what is left of e d' c x is a vector along x for each pair of channels."""
    layer = InvariantLayer(SPEC, blocks=2, inputs=2, outputs=3, width=1, rank=2)
    shapes = {name: tuple(p.shape) for name, p in layer.matrices.items()}
    assert shapes["I__B__none__full"] == (2, 3, 2, 4)
    assert shapes["I__QK__none__in_x"] == (2, 2, 4)
    assert "I__QK__none__out_d" not in shapes
    assert layer.row_parameters()["I <- B [a] x"].shape == (2, 3, 1, 2, 4)
    wider = InvariantLayer(SPEC, blocks=2, inputs=2, outputs=3, width=2, rank=2)
    assert tuple(wider.matrices["I__B__none__out_d"].shape) == (2, 2, 2)


@pytest.mark.parametrize("block", sorted(set(BLOCKS) - {"paper"}))  # it permutes an axis of D
def test_a_model_of_dimension_1(block: str) -> None:
    symbols = dict.fromkeys(axis.symbol for axis in BLOCKS[block].axes.values())
    spec = BlockSpec(BLOCKS[block], **{symbol: 1 if symbol == "D" else 2 for symbol in symbols})
    batch = WeightBatch.random(
        spec, networks=2, channels=2, blocks=2, generator=generator(0), dtype=torch.float64
    )
    for seed in (0, 1):
        compare(batch, 2, 2, seed, relu=True)
