from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.layers import paper_formula
from tests.strategies import batches, generator, seeds
from transformer_nfn.group import assert_equivariant, assert_invariant, relative_error
from transformer_nfn.layers import (
    BudgetError,
    EquivariantLayer,
    InvariantLayer,
    RowLayer,
    equivariant_rows,
    pointwise_relu,
    run_reference,
)
from transformer_nfn.space import (
    PAPER,
    RESIDUAL,
    BlockSpec,
    DeclarationError,
    NetBatch,
    ShapeError,
    WeightBatch,
    declare,
    free,
    linear,
    permuted,
)

EXACT = 1e-12
outputs = st.integers(1, 3)


def filled(layer: RowLayer, seed: int) -> RowLayer:
    """Float64, and no parameter zero: also constants must be equivariant."""
    layer = layer.double()
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator(seed))
    return layer


def equivariant(batch: WeightBatch, e: int, seed: int, relu: bool = False) -> EquivariantLayer:
    layer = EquivariantLayer(
        batch.spec, blocks=batch.blocks, inputs=batch.channels, outputs=e, relu=relu
    )
    filled(layer, seed)
    return layer


def invariant(batch: WeightBatch, e: int, d: int, seed: int) -> InvariantLayer:
    layer = InvariantLayer(
        batch.spec, blocks=batch.blocks, inputs=batch.channels, outputs=e, width=d
    )
    filled(layer, seed)
    return layer


@given(batches(), outputs, seeds)
def test_equivariant_layer_is_equivariant(batch: WeightBatch, e: int, seed: int) -> None:
    layer = equivariant(batch, e, seed)
    assert_equivariant(layer, batch, generator=generator(seed), tolerance=1e-10)


@given(batches(), outputs, seeds)
def test_relu_is_equivariant(batch: WeightBatch, e: int, seed: int) -> None:
    assert_equivariant(pointwise_relu, batch, generator=generator(seed), tolerance=1e-10)
    layer = equivariant(batch, e, seed, relu=True)
    assert_equivariant(layer, batch, generator=generator(seed), tolerance=1e-10)


@given(batches(), outputs, outputs, seeds)
def test_invariant_layer_is_invariant(batch: WeightBatch, e: int, d: int, seed: int) -> None:
    layer = invariant(batch, e, d, seed)
    assert layer(batch).shape == (batch.networks, e, batch.blocks, d)
    assert_invariant(layer, batch, generator=generator(seed), tolerance=1e-10)


@given(batches(), outputs, seeds, st.booleans())
def test_plan_equals_reference_with_gradients(
    batch: WeightBatch, e: int, seed: int, relu: bool
) -> None:
    """Two layers deep, so that the plan also meets the strides of its own output."""
    batch = batch.map(lambda tensor: tensor.requires_grad_())
    first = equivariant(batch, e, seed, relu=relu)
    second = EquivariantLayer(batch.spec, blocks=batch.blocks, inputs=e, outputs=2, relu=relu)
    filled(second, seed + 1)
    last = InvariantLayer(batch.spec, blocks=batch.blocks, inputs=2, outputs=3, width=2)
    filled(last, seed + 2)
    leaves = [*batch.tensors.values()]
    leaves += [p for layer in (first, second, last) for p in layer.parameters()]

    def gradients(value: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(value.sin().sum(), leaves))

    middle, middle_reference = second(first(batch)), second.reference(first.reference(batch))
    assert relative_error(middle, middle_reference) <= EXACT
    got, expected = last(middle), last.reference(middle_reference)
    assert relative_error(got, expected) <= EXACT
    # sin at large arguments would turn rounding into noise.
    scale = 1 / expected.detach().abs().max()
    for a, b in zip(gradients(got * scale), gradients(expected * scale), strict=True):
        assert relative_error(a, b) <= EXACT


@given(batches(PAPER), outputs, seeds)
def test_equivariant_layer_is_the_paper_s_formula(batch: WeightBatch, e: int, seed: int) -> None:
    """Against the paper's pseudocode, with its shapes: e d and then D's (target first)."""
    layer = equivariant(batch, e, seed)
    got = layer(batch)
    for block in range(batch.blocks):
        parameters = {}
        for row, view in zip(layer.rows, layer.row_parameters().values(), strict=True):
            # Ours: e x' c x. The paper's: e d x' x.
            order = [0, 1 + len(row.free_out), *range(1, 1 + len(row.free_out))]
            order += range(2 + len(row.free_out), view.dim() - 1)
            parameters[row.name] = view[block] if row.source == "1" else view[block].permute(order)
        weights = {name: batch[name][:, :, block] for name in batch.tensors}
        expected = paper_formula.evaluate(paper_formula.EQUIVARIANT, weights, parameters)
        for name in batch.tensors:
            assert relative_error(got[name][:, :, block], expected[name]) <= EXACT


@given(batches(PAPER), outputs, outputs, seeds)
def test_invariant_layer_is_the_paper_s_formula(
    batch: WeightBatch, e: int, d: int, seed: int
) -> None:
    """There D' stands last: e d p q D'."""
    layer = invariant(batch, e, d, seed)
    got = layer(batch)
    for block in range(batch.blocks):
        parameters = {
            name: view[block].movedim(1, -1) for name, view in layer.row_parameters().items()
        }
        weights = {name: batch[name][:, :, block] for name in batch.tensors}
        expected = paper_formula.evaluate(paper_formula.INVARIANT, weights, parameters)
        assert relative_error(got[:, :, block], expected["I"]) <= EXACT


SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=6)
BATCH = WeightBatch.random(
    SPEC, networks=2, channels=2, blocks=2, generator=generator(0), dtype=torch.float64
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("bA <- bA a", "a"),  # a coefficient for each pair of hidden neurons
        ("A <- VO x r", "r"),
        ("Q <- Q h x k", "k"),
        ("O <- O h v r", "h"),
    ],
)
def test_a_planted_wrong_row_is_caught(name: str, label: str) -> None:
    """Make one symmetric axis of one row free, so that it occurs in the parameter."""
    rows = list(equivariant_rows(PAPER))
    place = next(i for i, row in enumerate(rows) if row.name == name)
    right = rows[place]

    def error(wrong: bool) -> None:
        if wrong:
            rows[place] = replace(
                right,
                tied=tuple(a for a in right.tied if a != label),
                free_out=(*right.free_out, label),
                free_in=(*right.free_in, label),
            )
        parameters = {
            row.name: torch.randn(
                2,
                *row.parameter_shape(SPEC.lengths, 2, 3),
                dtype=torch.float64,
                generator=generator(1),
            )
            for row in rows
        }
        assert_equivariant(
            lambda u: WeightBatch(SPEC, run_reference(rows, u, parameters)),
            BATCH,
            generator=generator(2),
        )

    error(wrong=False)
    with pytest.raises(
        AssertionError, match=f"not equivariant: relative error .* in {right.target}"
    ):
        error(wrong=True)


def test_one_head_and_one_block() -> None:
    spec = BlockSpec(RESIDUAL, D=5, heads=1, D_k=2, D_v=3, D_A=4)
    batch = WeightBatch.random(spec, networks=2, generator=generator(0), dtype=torch.float64)
    assert_equivariant(equivariant(batch, 2, 0), batch, generator=generator(1))


def test_a_hundred_blocks_and_no_network() -> None:
    """What the benchmark sizes do not show: many blocks, an empty batch."""
    spec = BlockSpec(PAPER, D=16, heads=2, D_k=8, D_v=8, D_A=32)
    layer = EquivariantLayer(spec, blocks=100, inputs=1, outputs=2, relu=True)
    last = InvariantLayer(spec, blocks=100, inputs=2, outputs=2)
    batch = WeightBatch.random(spec, networks=2, blocks=100, generator=generator(0))
    assert last(layer(batch)).shape == (2, 2, 100, 1)
    assert relative_error(layer(batch), layer.reference(batch)) < 1e-5
    assert last(layer(batch[:0])).shape == (0, 2, 100, 1)


def test_a_layer_that_could_not_read_anything_is_refused() -> None:
    block = declare(
        "queries",
        {"x": free("D"), "h": permuted("heads"), "k": linear("D_k", per="h")},
        {"Q": "h x k"},
        {},
    )
    spec = BlockSpec(block, D=3, heads=2, D_k=2)
    assert len(EquivariantLayer(spec, blocks=1, inputs=1, outputs=1).rows) == 1
    with pytest.raises(ShapeError, match="declare a product in which it is summed"):
        InvariantLayer(spec, blocks=1, inputs=1, outputs=1)


def test_each_row_has_a_named_view_of_the_parameters() -> None:
    layer = EquivariantLayer(SPEC, blocks=2, inputs=2, outputs=3)
    views = layer.row_parameters()
    assert views["B <- QK x y"].shape == (2, 3, 4, 2, 4, 4)
    assert sum(view.numel() for view in views.values()) == layer.parameter_count
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        views["bB <- 1"].fill_(7.0)
    out = layer(BATCH.to(dtype=torch.float32))
    assert (out["bB"] == 7).all()
    assert all((out[name] == 0).all() for name in out.tensors if name != "bB")


def test_initial_scale_keeps_variance() -> None:
    spec = BlockSpec(PAPER, D=24, heads=3, D_k=10, D_v=12, D_A=40)
    batch = WeightBatch.random(spec, networks=40, channels=2, generator=generator(0))
    layer = EquivariantLayer(spec, blocks=1, inputs=2, outputs=30, generator=generator(1))
    with torch.no_grad():
        rms = layer(batch).rms()
        vector = InvariantLayer(
            spec, blocks=1, inputs=2, outputs=30, width=8, generator=generator(1)
        )(batch)
    assert all(0.7 < value < 1.4 for value in rms.values()), rms
    assert 0.7 < vector.square().mean().sqrt() < 1.4


def test_initial_parameters_follow_the_generator() -> None:
    def draw(seed: int) -> Tensor:
        layer = EquivariantLayer(SPEC, blocks=1, inputs=1, outputs=1, generator=generator(seed))
        return torch.cat([p.flatten() for p in layer.parameters()])

    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))


def test_a_layer_over_budget_names_its_rows_and_what_to_do() -> None:
    spec = BlockSpec(PAPER, D=768, heads=12, D_k=64, D_v=64, D_A=3072)
    with pytest.raises(BudgetError) as caught:
        EquivariantLayer(spec, blocks=1, inputs=1, outputs=10)
    message = str(caught.value)
    assert "B <- QK x y: parameter e x' c x y, 4,529,848,320" in message
    assert "max_parameters=200,000,000" in message
    assert "Use fewer channels" in message
    small = EquivariantLayer(SPEC, blocks=1, inputs=1, outputs=1)
    with pytest.raises(BudgetError):
        EquivariantLayer(
            SPEC, blocks=1, inputs=1, outputs=1, max_parameters=small.parameter_count - 1
        )
    EquivariantLayer(SPEC, blocks=1, inputs=1, outputs=1, max_parameters=small.parameter_count)


def test_repr_shows_the_parameter_count() -> None:
    spec = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
    assert "45 rows, 1,567,640 parameters" in repr(
        EquivariantLayer(spec, blocks=2, inputs=1, outputs=10)
    )


def test_wrong_input_is_refused() -> None:
    layer = EquivariantLayer(SPEC, blocks=3, inputs=2, outputs=1)
    with pytest.raises(ShapeError, match=r"is for 3 blocks and 2 channels .* got WeightBatch\(n=2"):
        layer(BATCH.to(dtype=torch.float32))
    with pytest.raises(ShapeError, match="at least one block and channel"):
        EquivariantLayer(SPEC, blocks=0, inputs=2, outputs=1)


def test_axes_for_each_index_of_a_free_one_have_no_layers() -> None:
    axes = {"x": free("D"), "g": free("G"), "k": linear("K", per="g")}
    block = declare("mine", axes, {"T": "g k x", "S": "g k* x"}, {})
    spec = BlockSpec(block, D=2, G=2, K=2)
    with pytest.raises(DeclarationError, match="for each index of a free or indexed one"):
        EquivariantLayer(spec, blocks=1, inputs=1, outputs=1)


@pytest.mark.wrong_types
def test_other_inputs_are_refused_in_words() -> None:
    layer = EquivariantLayer(SPEC, blocks=2, inputs=2, outputs=1)
    with pytest.raises(ShapeError, match="reads a WeightBatch, such as the blocks of a NetBatch"):
        layer(NetBatch(BATCH))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"computes in torch.float32, the weights are torch.fl"):
        layer(BATCH)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_autocast_gives(rank: int | None, dtype: torch.dtype) -> None:
    """Its own dtype, whatever the layer; float64 it leaves alone."""
    batch = BATCH.to(dtype)
    layer = InvariantLayer(SPEC, blocks=2, inputs=2, outputs=1, rank=rank).to(dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(batch)
    assert out.dtype == (torch.bfloat16 if dtype == torch.float32 else torch.float64)
