"""The shipped helpers must fail where they should."""

import pytest
import torch

from tests.strategies import generator
from transformer_nfn.group import assert_equivariant, assert_invariant, relative_error
from transformer_nfn.space import PAPER, BlockSpec, WeightBatch

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=6)
BATCH = WeightBatch.random(
    SPEC, networks=2, channels=2, blocks=2, generator=generator(0), dtype=torch.float64
)


def relu_on_mlp(batch: WeightBatch) -> WeightBatch:
    return batch.replace({name: batch[name].relu() for name in batch.spec.block.pointwise})


def test_equivariant_maps_pass() -> None:
    assert_equivariant(relu_on_mlp, BATCH, generator=generator(1))


def test_relu_on_queries_is_caught() -> None:
    with pytest.raises(AssertionError, match=r"not equivariant: relative error .* in Q exceeds"):
        assert_equivariant(lambda b: b.replace({"Q": b["Q"].relu()}), BATCH, generator=generator(1))


def test_a_bias_for_each_hidden_neuron_is_caught() -> None:
    with pytest.raises(AssertionError, match="in bA"):
        assert_equivariant(
            lambda b: b.replace({"bA": b["bA"] + torch.arange(6.0)}), BATCH, generator=generator(1)
        )


def test_invariant_maps_pass_and_others_are_caught() -> None:
    assert_invariant(lambda b: b.product("QK").flatten(1), BATCH, generator=generator(1))
    with pytest.raises(AssertionError, match="not invariant: relative error"):
        assert_invariant(lambda b: b.product("VO").flatten(1), BATCH, generator=generator(1))


def test_nan_is_an_error_not_a_pass() -> None:
    with pytest.raises(AssertionError, match="inf"):
        assert_invariant(lambda b: b["bB"] * float("nan"), BATCH, generator=generator(1))


def test_relative_error() -> None:
    one = torch.ones(4)
    assert relative_error(one, one) == 0
    assert relative_error(one * 1.5, one) == pytest.approx(0.5)
    assert relative_error(one, one * 0) == float("inf")
    assert relative_error(one * float("nan"), one) == float("inf")
    with pytest.raises(AssertionError, match="shape"):
        relative_error(torch.ones(3), one)
    with pytest.raises(TypeError, match="cannot compare"):
        relative_error(BATCH, one)
