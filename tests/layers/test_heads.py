"""The head-aware layer: heads and neurons one by one."""

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.layers.largest import Largest
from tests.strategies import batches, generator, seeds
from transformer_nfn.group import assert_invariant, relative_error
from transformer_nfn.layers import HeadAwareLayer, InvariantLayer
from transformer_nfn.space import (
    BLOCKS,
    GROUPED,
    PAPER,
    RELU,
    ROTARY,
    Block,
    BlockSpec,
    ShapeError,
    WeightBatch,
    declare,
    free,
    permuted,
)

SPEC = BlockSpec(PAPER, D=6, heads=3, D_k=2, D_v=4, D_A=5)
BATCH = WeightBatch.random(SPEC, networks=2, blocks=3, generator=generator(0), dtype=torch.float64)


def layer_for(batch: WeightBatch, seed: int = 0) -> HeadAwareLayer:
    layer = HeadAwareLayer(batch.spec, outputs=5, width=4, generator=generator(seed)).double()
    layer.learn_scales(batch)
    return layer


@settings(max_examples=30)
@given(batches(channels=1), seeds)
def test_it_is_invariant(batch: WeightBatch, seed: int) -> None:
    layer = layer_for(batch, seed)
    with torch.no_grad():
        assert layer(batch).shape == (batch.networks, batch.blocks, 5)
        assert_invariant(layer, batch, generator=generator(seed), samples=1, tolerance=1e-9)


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_what_is_no_symmetry_changes_it(block: str) -> None:
    symbols = dict.fromkeys(axis.symbol for axis in BLOCKS[block].axes.values())
    spec = BlockSpec(BLOCKS[block], **dict(zip(symbols, (7, 3, 2, 4, 5, 6), strict=False)))
    batch = WeightBatch.random(spec, networks=2, generator=generator(0), dtype=torch.float64)
    writer = "B" if "B" in batch else "down"
    layer = layer_for(batch)
    with torch.no_grad():
        expected = layer(batch)
        for name in (writer, "Q", "V"):
            # Neurons write in another order than they read; Q, V scaled, but not K and O.
            other = batch[name].roll(1, 3) if name == writer else 2 * batch[name]
            assert relative_error(layer(batch.replace({name: other})), expected) > 1e-4, name


def exchanged(batch: WeightBatch) -> WeightBatch:
    """V and O of the first two heads change places in the first block."""
    order = [1, 0, *range(2, batch["V"].shape[3])]

    def swap(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :, :1, order], tensor[:, :, 1:]], dim=2)

    return batch.replace({name: swap(batch[name]) for name in ("V", "O")})


@pytest.mark.parametrize("rank", [None, 2])
def test_it_knows_which_QK_belongs_to_which_VO(rank: int | None) -> None:
    """The paper's layer does not: it sums both over the heads."""
    other = exchanged(BATCH)
    papers = InvariantLayer(SPEC, blocks=3, inputs=1, outputs=4, rank=rank).double()
    layer = layer_for(BATCH)
    with torch.no_grad():
        assert relative_error(papers(other), papers(BATCH)) <= 1e-10
        assert relative_error(layer(other), layer(BATCH)) > 1e-3


def test_heads_of_a_group_share_keys_and_values() -> None:
    """Both heads of a group exchanged is a symmetry; one of each of two groups is not."""
    spec = BlockSpec(GROUPED, D=6, groups=2, heads_per_group=2, D_k=2, D_v=3, D_A=4)
    batch = WeightBatch.random(spec, networks=1, generator=generator(0), dtype=torch.float64)
    layer = layer_for(batch)

    def changed(order: list[int]) -> float:
        names = ("Q", "O")
        flat = {name: batch[name].flatten(3, 4)[:, :, :, order] for name in names}
        moved = batch.replace({name: flat[name].view_as(batch[name]) for name in names})
        with torch.no_grad():
            return relative_error(layer(moved), layer(batch))

    assert changed([1, 0, 2, 3]) <= 1e-12
    assert changed([0, 2, 1, 3]) > 1e-3


def test_gradients_reach_all_parameters_and_weights() -> None:
    batch = BATCH.map(lambda tensor: tensor.clone().requires_grad_())
    layer = layer_for(BATCH)
    out = layer(batch)
    with torch.no_grad():
        assert relative_error(layer(BATCH), out) <= 1e-12  # recomputing is for gradients only
    out.square().sum().backward()
    for tensor in (*layer.parameters(), *(t for n, t in batch.tensors.items() if n != "bB")):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()
        assert tensor.grad.abs().sum() > 0


def test_weights_that_are_zero_are_no_harm() -> None:
    batch = BATCH.map(lambda tensor: torch.zeros_like(tensor).requires_grad_())
    layer = layer_for(BATCH)
    layer(batch).sum().backward()
    for tensor in (*layer.parameters(), *batch.tensors.values()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_no_operation_makes_a_tensor_of_D_by_D(block: str) -> None:
    sizes = {"D": 256, "D_k": 4, "D_v": 4, "D_A": 16}
    axes = BLOCKS[block].axes.values()
    spec = BlockSpec(BLOCKS[block], **{**{a.symbol: 2 for a in axes}, **sizes})
    batch = WeightBatch.random(spec, networks=1, blocks=2, generator=generator(0))
    layer = HeadAwareLayer(spec, outputs=3)
    with Largest() as mode:
        layer(batch.map(lambda tensor: tensor.requires_grad_())).sum().backward()
    assert mode.elements < 256 * 256 / 4


def test_initial_parameters_follow_the_generator() -> None:
    def draw(seed: int) -> Tensor:
        layer = HeadAwareLayer(SPEC, outputs=2, generator=generator(seed))
        return torch.cat([p.flatten() for p in layer.parameters()])

    state = torch.random.get_rng_state()
    assert torch.equal(draw(3), draw(3))
    assert not torch.equal(draw(3), draw(4))
    assert torch.equal(torch.random.get_rng_state(), state)
    with torch.device("meta"):
        HeadAwareLayer(SPEC, outputs=2)


def test_other_weights_are_refused() -> None:
    features = WeightBatch.random(SPEC, networks=1, channels=2, generator=generator(0))
    with pytest.raises(ShapeError, match="2 channels are features"):
        HeadAwareLayer(SPEC, outputs=2)(features)
    block = declare("mlp", {"x": free("D"), "a": permuted("D_A")}, {"A": "x a", "B": "a x"}, {})
    with pytest.raises(ShapeError, match="'mlp' has no tensor Q"):
        HeadAwareLayer(BlockSpec(block, D=3, D_A=4), outputs=2)


@pytest.mark.parametrize(("block", "name"), [(RELU, "A"), (ROTARY, "Q")])
def test_blocks_with_other_symmetries_are_refused(block: Block, name: str) -> None:
    """A scale of a neuron changes its numbers; under RoPE QKᵀ is not all that counts."""
    spec = BlockSpec(block, **{axis.symbol: 4 for axis in block.axes.values() if axis.symbol})
    with pytest.raises(ShapeError, match=f"{name} of block '{block.name}' has axes"):
        HeadAwareLayer(spec, outputs=2)
