import pytest
import torch
from torch import nn

from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import relative_error
from transformer_nfn.space import (
    BlockSpec,
    NetBatch,
    ShapeError,
    WeightBatch,
    apply_blocks,
    apply_paper_net,
    declare,
    free,
    sine_positions,
)


def test_the_paper_s_mnist_net_has_18506_parameters() -> None:
    net = paper_nets(1)
    assert net.flat("embedding").shape == (1, 544)
    assert net.blocks.flat().shape == (1, 1, 16_576)
    assert net.flat("classifier").shape == (1, 1_386)


def test_the_net_agrees_with_torch_s_own_modules() -> None:
    """An outside reference: nn.MultiheadAttention, nn.LayerNorm and nn.Linear, net by net."""
    net = paper_nets(3)
    patches = torch.randn(3, 7, 16, dtype=torch.float64, generator=generator(1))
    got = apply_paper_net(net, patches)
    norm = nn.LayerNorm(32, elementwise_affine=False)
    for i in range(3):
        x = patches[i] @ net.embedding["weight"][i] + net.embedding["bias"][i]
        x = norm(x + sine_positions(7, 32))
        for block in range(2):
            w = {name: net.blocks[name][i, 0, block] for name in net.blocks}
            attention = nn.MultiheadAttention(32, 2, bias=False, dtype=torch.float64)
            wide = [w[name].transpose(0, 1).flatten(1).T for name in "QKV"]  # (h k) x
            with torch.no_grad():
                attention.in_proj_weight.copy_(torch.cat(wide))
                attention.out_proj.weight.copy_(w["O"].flatten(0, 1).T)
            x = norm(attention(x, x, x)[0])
            x = norm((x @ w["A"] + w["bA"]).relu() @ w["B"] + w["bB"])
        c = {name: tensor[i] for name, tensor in net.classifier.items()}
        logits = (x.mean(0) @ c["weight1"] + c["bias1"]).relu() @ c["weight2"] + c["bias2"]
        assert relative_error(got[i], logits.detach()) < 1e-12


def test_positions_are_sine_and_cosine() -> None:
    positions = sine_positions(5, 4)
    assert positions[0].tolist() == [0, 1, 0, 1]
    assert positions[3, 0].item() == pytest.approx(torch.tensor(3.0).sin().item())
    assert positions[3, 3].item() == pytest.approx(torch.tensor(0.03).cos().item())
    with pytest.raises(ShapeError, match="even model dimension D, not 5"):
        sine_positions(3, 5)


def test_parts_must_be_of_the_same_networks() -> None:
    net = paper_nets(3)
    assert net.select(slice(1, 3)).blocks.networks == 2
    with pytest.raises(ShapeError, match="the blocks are of 3 networks"):
        NetBatch(net.blocks, {"weight": torch.zeros(2, 16, 32)})
    with pytest.raises(ShapeError, match="have no embedding"):
        NetBatch(net.blocks).flat("embedding")


def test_only_a_network_s_own_weights_are_a_function() -> None:
    features = WeightBatch.random(PAPER_SPEC, networks=1, channels=2, generator=generator(0))
    with pytest.raises(ShapeError, match="2 channels are features"):
        apply_blocks(features, torch.zeros(1, 3, 32))
    silent = declare("silent", {"x": free("D")}, {"b": "x"}, {})
    batch = WeightBatch.random(BlockSpec(silent, D=3), networks=1, generator=generator(0))
    with pytest.raises(ShapeError, match="has no function"):
        apply_blocks(batch, torch.zeros(1, 3, 3))
