import pytest
import torch
from hypothesis import given

from tests.models.checks import assert_gradients_reach, assert_seeded
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator, seeds
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import ProbeNet, ProbeNetConfig
from transformer_nfn.space import RESIDUAL, BlockSpec, NetBatch, ShapeError, WeightBatch

NET = paper_nets(3)


def model(net: NetBatch = NET, seed: int = 0, generator: tuple[int, ...] | None = None) -> ProbeNet:
    config = ProbeNetConfig.of(net, tokens=5, probes=4, hidden=6, generator=generator, seed=seed)
    return ProbeNet(config).double()


def test_parameters() -> None:
    config = ProbeNetConfig(tokens=16, inputs=49, classes=10)
    reader = (480 + 1) * 64 + (64 + 1) * 64 + (64 + 1)
    assert ProbeNet(config).parameter_count == 48 * 16 * 49 + reader


def test_the_config_of_a_batch_has_its_sizes() -> None:
    config = ProbeNetConfig.of(NET, tokens=49, seed=4)
    assert config == ProbeNetConfig(tokens=49, inputs=16, classes=10, seed=4)
    words = NetBatch(NET.blocks, {}, NET.classifier)
    assert ProbeNetConfig.of(words, tokens=7).inputs == 32
    assert model(words)(words).shape == (3,)
    with pytest.raises(ShapeError, match="have no classifier"):
        ProbeNetConfig.of(NetBatch(NET.blocks), tokens=7)


@pytest.mark.parametrize("widths", [None, (2, 6, 7)])
@given(seeds)
def test_it_is_invariant(widths: tuple[int, ...] | None, seed: int) -> None:
    g = random_element(PAPER_SPEC, networks=3, blocks=2, generator=generator(seed))
    m = model(seed=seed, generator=widths)
    moved = NetBatch(g(NET.blocks), NET.embedding, NET.classifier)
    with torch.no_grad():
        assert relative_error(m(moved), m(NET)) <= 1e-9


def test_it_is_invariant_on_residual_nets() -> None:
    spec = BlockSpec(RESIDUAL, D=32, heads=2, D_k=3, D_v=5, D_A=7)
    blocks = WeightBatch.random(
        spec, networks=3, blocks=2, generator=generator(0), dtype=torch.float64
    )
    net = NetBatch(blocks, NET.embedding, NET.classifier)
    g = random_element(spec, networks=3, blocks=2, generator=generator(1))
    with torch.no_grad():
        moved = model(net)(NetBatch(g(blocks), NET.embedding, NET.classifier))
        assert relative_error(moved, model(net)(net)) <= 1e-9


def test_it_is_invariant_beyond_the_group_of_the_blocks() -> None:
    """Hidden neurons of the classifier change places, and answers get the same number added."""
    order = torch.randperm(32, generator=generator(0))
    c = NET.classifier
    classifier = {
        "weight1": c["weight1"][:, :, order],
        "bias1": c["bias1"][:, order],
        "weight2": c["weight2"][:, order],
        "bias2": c["bias2"] + 3,
    }
    moved = NetBatch(NET.blocks, NET.embedding, classifier)
    with torch.no_grad():
        assert relative_error(model()(moved), model()(NET)) <= 1e-9


@pytest.mark.parametrize("widths", [None, (2, 6, 7)])
def test_it_sees_another_function(widths: tuple[int, ...] | None) -> None:
    """Negative control."""
    other = NetBatch(NET.blocks, NET.embedding, paper_nets(3, seed=1).classifier)
    m = model(generator=widths)
    with torch.no_grad():
        assert relative_error(m(other), m(NET)) > 1e-3


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_logits_of_any_size_are_read(scale: float) -> None:
    classifier = {**NET.classifier, "weight2": NET.classifier["weight2"] * scale}
    net = NetBatch(NET.blocks, NET.embedding, classifier)
    net = NetBatch(
        net.blocks.to(dtype=torch.float32),
        {name: tensor.float() for name, tensor in net.embedding.items()},
        {name: tensor.float() for name, tensor in net.classifier.items()},
    )
    m = model().float()
    out = m(net)
    out.sum().backward()
    assert out.isfinite().all()
    assert m.probes.grad is not None
    assert m.probes.grad.isfinite().all()


def test_gradients_reach_every_parameter() -> None:
    m = model()
    assert_gradients_reach(m, NET)
    assert m.probes.grad is not None
    assert (m.probes.grad.flatten(1).abs().sum(dim=1) > 0).all()


def test_same_seed_same_model_and_the_global_generator_is_untouched() -> None:
    assert_seeded(lambda seed: model(seed=seed))


def test_networks_of_other_sizes_are_refused() -> None:
    words = NetBatch(NET.blocks, {}, NET.classifier)
    with pytest.raises(ShapeError, match=r"\(s, t, 32\).*got \(4, 5, 16\)"):
        model()(words)
    classifier = {**NET.classifier, "weight2": torch.zeros(3, 32, 4).double()}
    classifier["bias2"] = torch.zeros(3, 4).double()
    with pytest.raises(ShapeError, match="answers of 10 classes, these networks have 4"):
        model()(NetBatch(NET.blocks, NET.embedding, classifier))
