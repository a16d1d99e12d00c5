import pytest
import torch
from hypothesis import given

from tests.strategies import batches, generator, seeds
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.space import PAPER, BlockSpec, ShapeError, WeightBatch

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=6)


def small(networks: int = 5, channels: int = 2, blocks: int = 3) -> WeightBatch:
    return WeightBatch.random(
        SPEC, networks=networks, channels=channels, blocks=blocks, generator=generator(0)
    )


@given(batches())
def test_flat_and_back(batch: WeightBatch) -> None:
    flat = batch.flat()
    assert flat.shape == (batch.networks, batch.channels, batch.blocks * batch.spec.weights)
    again = WeightBatch.from_flat(batch.spec, flat, batch.blocks)
    assert all(torch.equal(again[name], batch[name]) for name in batch.tensors)


def test_flat_is_block_after_block_in_the_declared_order() -> None:
    batch = small()
    row = batch.flat()[1, 0]
    for block in range(batch.blocks):
        first = batch["Q"][1, 0, block].flatten()
        assert torch.equal(row[block * SPEC.weights :][: len(first)], first)
    with pytest.raises(ShapeError, match="rows of 7"):
        WeightBatch.from_flat(SPEC, torch.zeros(1, 1, 7), 2)


def test_selecting_and_joining() -> None:
    batch = small()
    assert (batch[1:3].networks, batch[[0, 4]].networks) == (2, 2)
    assert batch[torch.tensor([True, False, True, False, False])].networks == 2
    assert torch.equal(batch[[4]]["Q"][0], batch["Q"][4])
    part = batch.select(channels=slice(1, 2), blocks=slice(0, 2))
    assert (part.networks, part.channels, part.blocks) == (5, 1, 2)
    for along, pieces in {
        "networks": [batch[:2], batch[2:]],
        "channels": [batch.select(channels=slice(0, 1)), batch.select(channels=slice(1, 2))],
        "blocks": [batch.select(blocks=slice(0, 2)), batch.select(blocks=slice(2, 3))],
    }.items():
        joined = WeightBatch.cat(pieces, along)  # type: ignore[arg-type]
        assert all(torch.equal(joined[name], batch[name]) for name in batch.tensors)


def test_joining_different_specs_is_refused() -> None:
    other = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=7)
    batch = WeightBatch.random(other, networks=1, generator=generator(0))
    with pytest.raises(ShapeError, match="different specs"):
        WeightBatch.cat([small(), batch], "networks")


def test_it_cannot_be_changed() -> None:
    batch = small()
    with pytest.raises(AttributeError):
        batch.spec = SPEC  # type: ignore[misc]
    with pytest.raises(TypeError):
        batch.tensors["Q"] = torch.zeros(1)  # type: ignore[index]


def test_wrong_tensors_are_refused_with_symbols_and_numbers() -> None:
    tensors = dict(small().tensors)
    with pytest.raises(ShapeError, match=r"missing \['Q'\], unknown \['q'\]"):
        WeightBatch(SPEC, {("q" if k == "Q" else k): v for k, v in tensors.items()})
    with pytest.raises(ShapeError, match=r"'n c l h v\* r' = \(n, c, l, 2, 5, 4\), got"):
        WeightBatch(SPEC, {**tensors, "O": tensors["O"].mT})
    with pytest.raises(ShapeError, match=r"\(4, 2, 3\), other tensors of \(5, 2, 3\)"):
        WeightBatch(SPEC, {**tensors, "bB": tensors["bB"][:4]})
    with pytest.raises(ShapeError, match=r"use WeightBatch.to"):
        WeightBatch(SPEC, {**tensors, "bB": tensors["bB"].double()})


def test_moving_to_another_dtype() -> None:
    assert small().to(dtype=torch.float64).dtype == torch.float64


@given(batches(), seeds)
def test_scaling_commutes_with_the_group(batch: WeightBatch, seed: int) -> None:
    g = random_element(batch.spec, blocks=batch.blocks, generator=generator(seed))
    scales = batch.rms()
    assert relative_error(g(batch.scaled(scales)), g(batch).scaled(scales)) < 1e-14
    normal = batch.scaled(scales)
    assert all(rms == pytest.approx(1) for rms in normal.rms().values())


def test_scales_must_be_complete_and_positive() -> None:
    batch = small()
    with pytest.raises(ShapeError, match="must be positive and name"):
        batch.scaled({**batch.rms(), "Q": 0.0})
    with pytest.raises(ShapeError, match="must be positive and name"):
        batch.scaled({"Q": 1.0})


@given(batches(PAPER))
def test_products_are_sums_over_heads(batch: WeightBatch) -> None:
    heads = range(batch.spec.size("h"))
    qk = sum(batch["Q"][:, :, :, i] @ batch["K"][:, :, :, i].mT for i in heads)
    vo = sum(batch["V"][:, :, :, i] @ batch["O"][:, :, :, i] for i in heads)
    assert isinstance(qk, torch.Tensor)
    assert isinstance(vo, torch.Tensor)
    assert relative_error(batch.product("QK"), qk) < 1e-14
    assert relative_error(batch.product("VO"), vo) < 1e-14
