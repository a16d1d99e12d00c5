"""The model on adapters does not see the basis between A and B, nor zeros beyond their rank."""

import copy
import io
import pickle  # noqa: TID251 - that it can be done is what is tested
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.adapters.test_collection import write
from transformer_nfn.adapters import (
    LORA,
    Adapter,
    AdapterCollection,
    AdapterNet,
    AdapterNetShape,
    move_adapter,
    read_adapters,
    soft_ranks,
)
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.space import BlockSpec, WeightBatch

SETTINGS: list[dict[str, Any]] = [
    {},
    {"rank": None},
    {"channels": 0},
    {"spectrum": False},
    {"channels": 0, "rank": None, "spectrum": False},
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def collection(tmp_path: Path) -> AdapterCollection:
    ranks = (2, 4, 1)
    folders = [write(tmp_path / f"n{seed}", rank, seed) for seed, rank in enumerate(ranks)]
    return read_adapters(folders, dtype=torch.float64)


def made(collection: AdapterCollection, **settings: Any) -> AdapterNet:
    net = AdapterNet(AdapterNetShape.of(collection, 3, **settings), generator()).double()
    net.calibrate(collection.batches)
    return net


def moved(batch: WeightBatch) -> WeightBatch:
    sizes = {"networks": batch.networks, "blocks": batch.blocks}
    return random_element(batch.spec, **sizes, generator=generator(5))(batch)


@pytest.mark.parametrize("settings", SETTINGS)
def test_invariant_under_GL_of_each_module(
    settings: dict[str, Any], collection: AdapterCollection
) -> None:
    net = made(collection, **settings)
    out = net(collection.batches)
    assert out.shape == (3, 3)
    others = [moved(batch) for batch in collection.batches]
    assert relative_error(net(others), out) < 1e-10
    assert not torch.allclose(others[0]["A"], collection.batches[0]["A"])
    # One factor moved alone is another update, and is noticed.
    half = [
        other.replace({"A": b["A"]}) for other, b in zip(others, collection.batches, strict=True)
    ]
    assert relative_error(net(half), out) > 1e-3


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_same_answer_for_an_adapter_that_is_padded_or_moved(
    settings: dict[str, Any], tmp_path: Path, collection: AdapterCollection
) -> None:
    net = made(collection, **settings)
    alone = read_adapters([collection.paths[0]], dtype=torch.float64)
    assert alone.batches[0].spec.sizes["rank"] == 2
    # No parameter has the axis k, so those of a model for rank 4 fit one for rank 2.
    narrow = AdapterNet(AdapterNetShape.of(alone, 3, **settings)).double()
    narrow.load_state_dict(net.state_dict())
    wanted = net(collection.batches)[:1]
    assert relative_error(narrow(alone.batches), wanted) < 1e-10
    with Adapter(collection.paths[0]) as adapter:
        other = move_adapter(adapter, tmp_path / "moved", generator(1))
    again = read_adapters([other], rank=9, dtype=torch.float64)
    wide = AdapterNet(AdapterNetShape.of(again, 3, **settings)).double()
    wide.load_state_dict(net.state_dict())
    assert relative_error(wide(again.batches), wanted) < 1e-10


def test_gradients_reach_every_parameter_also_through_zeros(collection: AdapterCollection) -> None:
    net = made(collection)
    batches = [b.map(lambda tensor: tensor.requires_grad_()) for b in collection.batches]
    net(batches).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    assert all(p.grad is not None and p.grad.any() for p in net.mixing.parameters())
    assert all(b[name].grad.isfinite().all() for b in batches for name in b.tensors)


def test_an_adapter_that_was_not_trained(collection: AdapterCollection) -> None:
    zero = [batch.replace({"B": torch.zeros_like(batch["B"])}) for batch in collection.batches]
    net = made(collection)
    assert net(zero).isfinite().all()
    net.calibrate(zero)
    assert net(zero).isfinite().all()
    assert (net.scales == 1).all()


def test_the_size_of_updates_is_taken_from_training_data(collection: AdapterCollection) -> None:
    net = made(collection)
    small = [b.replace({"A": b["A"] / 32, "B": b["B"] / 32}) for b in collection.batches]
    out = net(collection.batches)
    sizes = [b.product("AB").square().mean(dim=(0, 1, 3, 4)).sqrt() for b in collection.batches]
    torch.testing.assert_close(net.scales, torch.cat(sizes))
    assert relative_error(net(small), out) > 1e-3
    net.calibrate(small)
    assert relative_error(net(small), out) < 1e-10


def copied(net: AdapterNet) -> AdapterNet:
    return copy.deepcopy(net)


def pickled(net: AdapterNet) -> AdapterNet:
    file = io.BytesIO(pickle.dumps(net))
    again = pickle.load(file)
    assert isinstance(again, AdapterNet)
    return again


@pytest.mark.parametrize("again", [copied, pickled])
def test_copies_and_pickles(again: Any, collection: AdapterCollection) -> None:
    net = made(collection).eval()
    net.head[0].weight.requires_grad_(False)
    other = again(net)
    out = net(collection.batches)
    assert torch.equal(other(collection.batches), out)
    assert not other.training
    flags = [[p.requires_grad for p in n.parameters()] for n in (net, other)]
    assert flags[0] == flags[1]
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(net(collection.batches), out)


def parameters(net: AdapterNet) -> Tensor:
    return torch.nn.utils.parameters_to_vector(net.parameters())


def test_initial_parameters_are_of_the_global_generator_or_of_a_given_one() -> None:
    shape = AdapterNetShape(((5, 6, 2, 3),), 2)
    torch.manual_seed(3)
    first, second = (parameters(AdapterNet(shape)) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(parameters(AdapterNet(shape)), first)
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    given = [parameters(AdapterNet(shape, generator(seed))) for seed in (3, 3, 4)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(given[0], given[1])
    assert not torch.equal(given[0], given[2])


def test_soft_ranks_are_those_of_the_singular_values() -> None:
    spec = BlockSpec(LORA, D_x=6, D_y=5, rank=4)
    batch = WeightBatch.random(
        spec, networks=2, channels=3, blocks=2, generator=generator(), dtype=torch.float64
    )
    thresholds = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)
    squares = torch.linalg.svdvals(batch.product("AB")).square().unsqueeze(-1)
    wanted = (squares / (squares + thresholds.square())).sum(-2)
    found = soft_ranks(batch, thresholds)
    assert found.shape == (2, 3, 2, 3)
    assert relative_error(found, wanted) < 1e-10


def test_derivatives_of_soft_ranks_where_the_rank_is_smaller_than_r() -> None:
    spec = BlockSpec(LORA, D_x=6, D_y=5, rank=4)
    batch = WeightBatch.random(spec, networks=1, generator=generator(), dtype=torch.float64)
    A, B = batch["A"].clone(), batch["B"].clone()
    A[..., 2:], B[..., 2:, :] = 0, 0  # as padded
    thresholds = torch.tensor([0.5, 2.0], dtype=torch.float64)

    def ranks(A: Tensor, B: Tensor) -> Tensor:
        return soft_ranks(WeightBatch(spec, {"A": A, "B": B}), thresholds)

    assert torch.autograd.gradcheck(ranks, (A.requires_grad_(), B.requires_grad_()))


def test_a_wide_module_needs_parameters_linear_in_its_width() -> None:
    net = AdapterNet(AdapterNetShape(((4096, 4096, 8, 1),), 2))
    assert sum(parameter.numel() for parameter in net.parameters()) < 200_000
