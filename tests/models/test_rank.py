from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tests.models.checks import assert_loss_falls
from tests.strategies import batches, generator, seeds
from transformer_nfn.group import assert_invariant, relative_error
from transformer_nfn.layers import BudgetError
from transformer_nfn.models import (
    Encoder,
    ModelFileError,
    NFNConfig,
    TransformerNFN,
    load_model,
    save_model,
)
from transformer_nfn.space import PAPER, RESIDUAL, BlockSpec, NetBatch, WeightBatch

SPEC = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)


@given(batches(channels=1), st.lists(st.integers(2, 4), min_size=1, max_size=3), seeds)
def test_the_model_is_invariant(batch: WeightBatch, channels: list[int], seed: int) -> None:
    config = NFNConfig.of(
        batch.spec, blocks=batch.blocks, channels=channels, rank=2, width=2, seed=seed
    )
    model = TransformerNFN(config).double()
    with torch.no_grad():
        assert_invariant(
            lambda u: model(NetBatch(u)), batch, generator=generator(seed), tolerance=1e-10
        )


@settings(max_examples=8)
@given(batches(channels=1), st.sampled_from([None, 2]), seeds)
def test_recomputing_changes_no_number(batch: WeightBatch, rank: int | None, seed: int) -> None:
    """Values and all gradients, those of the weights too."""
    batch = batch.map(lambda tensor: tensor.requires_grad_())
    results = []
    for recompute in (False, True):
        config = NFNConfig.of(
            batch.spec,
            blocks=batch.blocks,
            channels=(3, 2),
            rank=rank,
            recompute=recompute,
            seed=seed,
        )
        model = TransformerNFN(config).double()
        value = model(NetBatch(batch))
        leaves = [*model.parameters(), *batch.tensors.values()]
        gradients = torch.autograd.grad(value.sin().sum(), leaves)
        results.append((value, torch.cat([g.flatten() for g in gradients])))
    for a, b in zip(*results, strict=True):
        assert relative_error(a, b) <= 1e-10


def test_recomputing_keeps_little_for_the_backward_pass() -> None:
    spec = BlockSpec(RESIDUAL, D=32, heads=2, D_k=16, D_v=16, D_A=64)
    batch = WeightBatch.random(spec, networks=2, blocks=3, generator=generator(0))

    def kept(**settings: Any) -> int:
        encoder = Encoder(spec, blocks=3, channels=(5, 5), generator=generator(0), **settings)
        storages: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.size()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            value = encoder(batch)
        value.sum().backward()
        assert all(parameter.grad is not None for parameter in encoder.parameters())
        return sum(storages.values())

    assert kept(rank=2) < kept(rank=2, recompute=False) / 20
    assert kept(recompute=True) < kept() / 20


def test_a_saved_model_with_a_rank_predicts_the_same(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    saved = TransformerNFN(NFNConfig.of(SPEC, blocks=2, channels=(3, 2), rank=3, seed=3))
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter += 0.25
    save_model(saved, path)
    loaded = load_model(path)
    net = NetBatch(WeightBatch.random(SPEC, networks=3, blocks=2, generator=generator(0)))
    assert torch.equal(loaded(net), saved(net))
    assert loaded.config == saved.config
    assert loaded.config.rank == 3
    assert loaded.encoder.recompute
    assert "rank 3" in repr(loaded)


def test_a_file_whose_rank_is_not_its_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    for rank in (None, 2, 10**12):
        saved = TransformerNFN(NFNConfig.of(SPEC, blocks=2, rank=3))
        saved.config = saved.config.model_copy(update={"rank": rank})
        save_model(saved, path)
        with pytest.raises(ModelFileError, match="do not fit its config"):
            load_model(path)


def test_without_a_rank_nothing_is_recomputed() -> None:
    assert not TransformerNFN(NFNConfig.of(SPEC, blocks=2)).encoder.recompute
    assert not TransformerNFN(
        NFNConfig.of(SPEC, blocks=2, rank=1, recompute=False)
    ).encoder.recompute
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        NFNConfig.of(SPEC, blocks=2, rank=0)


def test_sizes_of_real_models_fit_with_a_rank() -> None:
    spec = BlockSpec(RESIDUAL, D=768, heads=12, D_k=64, D_v=64, D_A=3072)
    with torch.device("meta"):
        with pytest.raises(BudgetError):
            TransformerNFN(NFNConfig.of(spec, blocks=12))
        model = TransformerNFN(NFNConfig.of(spec, blocks=12, rank=8))
    assert model.parameter_count < 12_000_000


def test_it_learns() -> None:
    spec = BlockSpec(PAPER, D=6, heads=2, D_k=3, D_v=3, D_A=8)
    batch = WeightBatch.random(spec, networks=64, blocks=2, generator=generator(0))
    target = batch.product("QK").diagonal(dim1=-2, dim2=-1).sum(-1).mean((1, 2)).sigmoid()
    model = TransformerNFN(NFNConfig.of(spec, blocks=2, rank=4))
    assert_loss_falls(model, NetBatch(batch), target, rate=5e-3, steps=30)
