import torch
from hypothesis import given, settings

from tests.strategies import batches, generator, seeds
from transformer_nfn.group import conditioned, random_element, relative_error
from transformer_nfn.space import PAPER, BlockSpec, WeightBatch, apply_blocks, balance


@given(batches(), seeds)
def test_balanced_weights_have_the_same_products(batch: WeightBatch, seed: int) -> None:
    balanced = balance(batch)
    for name in batch.spec.block.products:
        assert relative_error(balanced.weights.product(name), batch.product(name)) < 1e-12
    assert not any(mask.any() for mask in balanced.deficient.values())


@given(batches(channels=1), seeds)
def test_balanced_weights_are_the_same_function(batch: WeightBatch, seed: int) -> None:
    tokens = torch.randn(
        batch.networks, 5, batch.spec.size("x"), dtype=torch.float64, generator=generator(seed)
    )
    expected = apply_blocks(batch, tokens)
    assert relative_error(apply_blocks(balance(batch).weights, tokens), expected) < 1e-9


@given(batches(PAPER, channels=1))
def test_both_factors_have_the_same_gram_matrix(batch: WeightBatch) -> None:
    weights = balance(batch).weights
    q, k, v, o = (weights[name] for name in "QKVO")
    assert relative_error(q.mT @ q, k.mT @ k) < 1e-11
    assert relative_error(v.mT @ v, o @ o.mT) < 1e-11


@settings(max_examples=5)
@given(batches(PAPER), seeds)
def test_it_undoes_bad_conditioning(batch: WeightBatch, seed: int) -> None:
    """g and the identity lead to the same member of the orbit, up to O(k): same Gram matrices."""
    g = random_element(
        batch.spec, blocks=batch.blocks, generator=generator(seed), matrices=conditioned(1e4)
    )
    tau = g.parts["h"].expand(batch.networks, -1, -1)
    plain = balance(batch).weights["Q"]
    moved = balance(g(batch)).weights["Q"]
    gram_plain = (plain @ plain.mT).take_along_dim(tau[:, None, :, :, None, None], dim=3)
    assert relative_error(moved @ moved.mT, gram_plain) < 1e-6


def test_rank_deficient_heads_are_reported_and_left_alone() -> None:
    spec = BlockSpec(PAPER, D=6, heads=3, D_k=2, D_v=4, D_A=5)
    batch = WeightBatch.random(spec, networks=2, blocks=2, generator=generator(0))
    q = batch["Q"].clone()
    q[1, 0, 0, 2, :, 1] = q[1, 0, 0, 2, :, 0]
    batch = batch.replace({"Q": q})
    balanced = balance(batch)
    assert balanced.deficient["k"].nonzero().tolist() == [[1, 0, 2]]
    assert not balanced.deficient["v"].any()
    assert torch.equal(balanced.weights["Q"][1, 0, 0, 2], q[1, 0, 0, 2])
    assert not torch.equal(balanced.weights["Q"][1, 0, 0, 1], q[1, 0, 0, 1])


def test_a_head_wider_than_the_model_is_deficient() -> None:
    spec = BlockSpec(PAPER, D=3, heads=2, D_k=5, D_v=2, D_A=4)
    batch = WeightBatch.random(spec, networks=1, generator=generator(0))
    balanced = balance(batch)
    assert balanced.deficient["k"].all()
    assert torch.equal(balanced.weights["Q"], batch["Q"])
