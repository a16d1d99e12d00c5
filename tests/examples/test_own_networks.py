"""The example of networks of one's own: its parts, small."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from transformer_nfn.data import WeightDataset
from transformer_nfn.models import LOSSES, NFNConfig, TransformerNFN
from transformer_nfn.space import NetBatch, apply_blocks

HOME = Path(__file__).parents[2] / "examples" / "own_networks"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(HOME))
    import fitting
    import training

    yield training, fitting
    for name in ("training", "fitting"):
        sys.modules.pop(name)


def test_blocks_read_digits_as_the_modules_do(example) -> None:
    training, _ = example
    module, accuracy = training.train(3, steps=2)
    assert 0 <= accuracy <= 1
    nets = NetBatch.from_modules([module], embedding="embed.", classifier="head.")
    patches, _ = training.digits()
    tokens = module.embed(patches[:5]) + module.positions
    with torch.no_grad():
        expected = module.encoder(tokens)
        got = apply_blocks(nets.blocks, tokens.unsqueeze(0))[0]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_a_seed_is_a_network(example) -> None:
    training, _ = example
    one, again, other = (training.train(seed, steps=1)[0].state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


@pytest.mark.parametrize("kind", ["regression", "ranking"])
def test_fit_learns_what_can_be_learned(example, kind) -> None:
    """The target is a bias of the networks, of either sign."""
    _, fitting = example
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, norm_first=True)
    nets = NetBatch.from_modules([nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)] * 48)
    targets = torch.linspace(-1, 1, 48)[torch.randperm(48)]
    biases = targets.view(-1, 1, 1, 1).expand_as(nets.blocks["bB"])
    data = WeightDataset(NetBatch(nets.blocks.replace({"bB": biases})), targets)
    model = TransformerNFN(NFNConfig.of(data.networks, channels=(4,), seed=0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    best = fitting.fit(model, data, data, LOSSES[kind], epochs=20, rate=1e-2)
    assert fitting.tau(best, data) > 0.8
    assert not torch.equal(before["head.weight"], model.state_dict()["head.weight"])
