import numpy as np
import pytest
import torch

from tests.models.checks import assert_gradients_reach, assert_seeded
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import StatNN, StatNNConfig, tensor_statistics
from transformer_nfn.space import NetBatch, ShapeError, WeightBatch

NET = paper_nets(3)


def model(seed: int = 0) -> StatNN:
    config = StatNNConfig.of(NET, hidden=8, embedding_hidden=5, seed=seed)
    return StatNN(config).double()


@pytest.mark.parametrize(("embedding", "parameters"), [(544, 203_393), (None, 168_449)])
def test_parameters_are_the_paper_s(embedding: int | None, parameters: int) -> None:
    assert StatNN(StatNNConfig(tensors=16, embedding=embedding)).parameter_count == parameters


def test_the_config_of_a_batch_has_its_sizes() -> None:
    assert StatNNConfig.of(NET, seed=4) == StatNNConfig(tensors=16, embedding=544, seed=4)
    words = NetBatch(NET.blocks, {}, NET.classifier)
    assert StatNNConfig.of(words).embedding is None
    assert StatNN(StatNNConfig.of(words)).double()(words).shape == (3,)


@pytest.mark.parametrize("shape", [(4, 1), (4, 2), (4, 7, 3), (4, 2, 3, 5), (1, 6)])
def test_statistics_agree_with_numpy(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, generator=generator(0), dtype=torch.float64)
    rows = tensor.flatten(1).numpy()
    quantiles = np.quantile(rows, [0, 0.25, 0.5, 0.75, 1], axis=1)
    expected = np.stack([rows.mean(axis=1), rows.var(axis=1), *quantiles], axis=1)
    assert np.allclose(tensor_statistics(tensor).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_inputs_then_read_is_forward() -> None:
    inputs = model().inputs(NET)
    assert inputs.shape == (3, 112 + 544 + 28)
    assert torch.equal(inputs[:, 7:14], tensor_statistics(NET.blocks["K"][:, 0, 0]))
    assert torch.equal(inputs[:, 56:63], tensor_statistics(NET.blocks["Q"][:, 0, 1]))
    assert torch.equal(inputs[:, 112:656], NET.flat("embedding"))
    assert torch.equal(inputs[:, -7:], tensor_statistics(NET.classifier["bias2"]))
    assert torch.equal(model().read(inputs), model()(NET))


def test_gradients_reach_every_parameter() -> None:
    assert_gradients_reach(model(), NET)


def test_same_seed_same_model_and_the_global_generator_is_untouched() -> None:
    assert_seeded(model)


def test_networks_of_other_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="have no embedding"):
        model()(NetBatch(NET.blocks, {}, NET.classifier))
    with pytest.raises(ShapeError, match="have no classifier"):
        model()(NetBatch(NET.blocks, NET.embedding))
    with pytest.raises(ShapeError, match=r"reads 112 numbers of the blocks.*give 56"):
        model()(NetBatch(NET.blocks.select(blocks=slice(1)), NET.embedding, NET.classifier))
    with pytest.raises(ShapeError, match=r"rows of 684 numbers .*got 5"):
        model().read(torch.zeros(3, 5, dtype=torch.float64))
    features = WeightBatch.random(PAPER_SPEC, networks=1, channels=2, generator=generator(0))
    with pytest.raises(ShapeError, match="2 channels are features"):
        model()(NetBatch(features))


def test_it_is_not_invariant() -> None:
    """Negative control: the matrices M and N change the statistics of Q, K, V and O."""
    g = random_element(PAPER_SPEC, blocks=2, generator=generator(0))
    moved = NetBatch(g(NET.blocks), NET.embedding, NET.classifier)
    with torch.no_grad():
        assert relative_error(model()(moved), model()(NET)) > 1e-3
