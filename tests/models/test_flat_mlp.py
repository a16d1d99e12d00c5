import pytest
import torch

from tests.models.checks import assert_gradients_reach, assert_seeded
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import FlatMLP, FlatMLPConfig
from transformer_nfn.space import NetBatch, ShapeError, WeightBatch

NET = paper_nets(3)


def model(seed: int = 0) -> FlatMLP:
    return FlatMLP(FlatMLPConfig.of(NET, hidden=8, seed=seed)).double()


@pytest.mark.parametrize(
    ("embedding", "classifier", "parameters"), [(544, 1386, 933_251), (None, 1188, 896_051)]
)
def test_parameters_are_the_paper_s(
    embedding: int | None, classifier: int, parameters: int
) -> None:
    config = FlatMLPConfig(blocks=16_576, embedding=embedding, classifier=classifier)
    assert FlatMLP(config).parameter_count == parameters


def test_the_config_of_a_batch_has_its_sizes() -> None:
    config = FlatMLPConfig.of(NET, seed=4)
    assert config == FlatMLPConfig(blocks=16_576, embedding=544, classifier=1386, seed=4)
    words = NetBatch(NET.blocks, {}, NET.classifier)
    assert FlatMLPConfig.of(words).embedding is None
    assert FlatMLP(FlatMLPConfig.of(words)).double()(words).shape == (3,)


def test_inputs_then_read_is_forward() -> None:
    inputs = model().inputs(NET)
    parts = [NET.blocks.flat().squeeze(1), NET.flat("embedding"), NET.flat("classifier")]
    assert torch.equal(inputs, torch.cat(parts, dim=1))
    assert torch.equal(model().read(inputs), model()(NET))


def test_gradients_reach_every_parameter() -> None:
    assert_gradients_reach(model(), NET)


def test_same_seed_same_model_and_the_global_generator_is_untouched() -> None:
    assert_seeded(model)


def test_networks_of_other_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="have no embedding"):
        model()(NetBatch(NET.blocks, {}, NET.classifier))
    with pytest.raises(ShapeError, match=r"reads 544 numbers of the embedding.*give 7"):
        model()(NetBatch(NET.blocks, {"all": torch.zeros(3, 7)}, NET.classifier))
    with pytest.raises(ShapeError, match=r"reads 16576 numbers of the blocks.*give 8288"):
        model()(NetBatch(NET.blocks.select(blocks=slice(1)), NET.embedding, NET.classifier))
    with pytest.raises(ShapeError, match=r"rows of 18506 numbers .*got 5"):
        model().read(torch.zeros(3, 5, dtype=torch.float64))
    features = WeightBatch.random(PAPER_SPEC, networks=1, channels=2, generator=generator(0))
    with pytest.raises(ShapeError, match="2 channels are features"):
        model()(NetBatch(features))


def test_it_is_not_invariant() -> None:
    """Negative control: it sees in which coordinates a function is written."""
    g = random_element(PAPER_SPEC, blocks=2, generator=generator(0))
    moved = NetBatch(g(NET.blocks), NET.embedding, NET.classifier)
    with torch.no_grad():
        assert relative_error(model()(moved), model()(NET)) > 1e-3
