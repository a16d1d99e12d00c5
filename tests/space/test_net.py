from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from tests.zoo.plain import PlainNet
from transformer_nfn.group import relative_error
from transformer_nfn.space import (
    BLOCKS,
    BlockSpec,
    NetBatch,
    ShapeError,
    WeightBatch,
    apply_blocks,
    apply_net,
    apply_paper_net,
    declare,
    free,
    layer_norm,
    sine_positions,
)
from transformer_nfn.zoo.nets import NetShape

SIZES = {"tokens": 5, "D": 12, "heads": 3, "D_A": 11, "blocks": 2, "hidden": 6, "classes": 7}
SHAPES = pytest.mark.parametrize(
    "shape",
    [NetShape(block=b, inputs=p, **SIZES) for b in ("paper", "residual") for p in (9, 0)],
    ids=["paper", "paper text", "residual", "residual text"],
)


def zoo_rows(shape: NetShape, networks: int = 3) -> torch.Tensor:
    return torch.randn(networks, shape.size, generator=generator(1), dtype=torch.float64)


def sequences(shape: NetShape, *lead: int) -> torch.Tensor:
    size = (*lead, shape.tokens, shape.inputs or shape.D)
    return torch.randn(size, generator=generator(2), dtype=torch.float64)


def one_sequence(net: NetBatch, x: torch.Tensor) -> torch.Tensor:
    """The same nets with nothing but `apply_blocks`, for tokens "n t p"."""
    if net.embedding:
        x = torch.einsum("ntp,npx->ntx", x, net.embedding["weight"])
        x = x + net.embedding["bias"][:, None]
    x = x + sine_positions(*x.shape[1:])
    if net.blocks.spec.block.name == "paper":
        x = apply_blocks(net.blocks, layer_norm(x, 1e-5))
    else:
        x = layer_norm(apply_blocks(net.blocks, x), 1e-5)
    c = net.classifier
    hidden = (torch.einsum("nx,nxu->nu", x.mean(dim=1), c["weight1"]) + c["bias1"]).relu()
    return torch.einsum("nu,nuo->no", hidden, c["weight2"]) + c["bias2"]


@SHAPES
def test_many_sequences_are_one_after_the_other(shape: NetShape) -> None:
    net, inputs = shape.net_batch(zoo_rows(shape)), sequences(shape, 3, 4)
    expected = torch.stack([one_sequence(net, inputs[:, s]) for s in range(4)], dim=1)
    assert relative_error(apply_net(net, inputs), expected) < 1e-12
    if shape.block == "paper":
        assert relative_error(apply_paper_net(net, inputs[:, 0]), expected[:, 0]) < 1e-12


@SHAPES
def test_shared_sequences_are_each_network_s_own(shape: NetShape) -> None:
    net, shared = shape.net_batch(zoo_rows(shape)), sequences(shape, 4)
    own = apply_net(net, shared.expand(3, *shared.shape))
    assert relative_error(apply_net(net, shared), own) < 1e-12


@SHAPES
def test_the_nets_agree_with_the_plain_ones_of_the_zoo(shape: NetShape) -> None:
    rows, inputs = zoo_rows(shape), sequences(shape, 4)
    got = apply_net(shape.net_batch(shape.to_stored(rows)), inputs)
    for i, row in enumerate(rows):
        plain = PlainNet(shape).double().load(row)
        masks = torch.ones(2 * shape.blocks, 4, shape.tokens, shape.D, dtype=torch.float64)
        assert relative_error(got[i], plain(inputs, None, masks).detach()) < 1e-12


@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_blocks_take_many_sequences(name: str) -> None:
    symbols = dict.fromkeys(axis.symbol for axis in BLOCKS[name].axes.values())
    spec = BlockSpec(BLOCKS[name], **dict(zip(symbols, (6, 2, 3, 4, 5, 7), strict=False)))
    batch = WeightBatch.random(
        spec, networks=2, blocks=2, generator=generator(0), dtype=torch.float64
    )
    tokens = torch.randn(2, 3, 4, 5, 6, generator=generator(1), dtype=torch.float64)
    tokens = tokens[..., : spec.sizes["D"]]
    got = apply_blocks(batch, tokens)
    for s in range(3):
        for u in range(4):
            expected = apply_blocks(batch, tokens[:, s, u])
            assert relative_error(got[:, s, u], expected) < 1e-12


def test_gradients_reach_shared_inputs() -> None:
    shape = NetShape(inputs=9, **SIZES)
    net, inputs = shape.net_batch(zoo_rows(shape)), sequences(shape, 4).requires_grad_()
    apply_net(net, inputs).square().sum().backward()
    assert inputs.grad is not None
    assert (inputs.grad != 0).all()


def test_inputs_and_nets_that_do_not_fit_are_refused() -> None:
    net = paper_nets(3)
    inputs = torch.zeros(2, 5, 16, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"\(3, s, t, 16\), or \(s, t, 16\).*got \(2, 5, 9\)"):
        apply_net(net, inputs[..., :9])
    with pytest.raises(ShapeError, match=r"got \(4, 2, 5, 16\)"):
        apply_net(net, inputs.expand(4, 2, 5, 16))
    with pytest.raises(ShapeError, match=r"\(s, t, 32\)"):
        apply_net(NetBatch(net.blocks, {}, net.classifier), inputs)
    with pytest.raises(ShapeError, match="have no classifier"):
        apply_net(NetBatch(net.blocks, net.embedding), inputs)
    tables = replace(BLOCKS["gated"], halves=())
    spec = BlockSpec(tables, D=6, heads=2, D_k=3, D_v=4, D_A=5)
    batch = WeightBatch.random(spec, networks=1, generator=generator(0))
    with pytest.raises(ShapeError, match=r"'gated' does not say where its norms stand.*compose"):
        apply_net(NetBatch(batch), torch.zeros(1, 2, 6))


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
            w = {name: net.blocks[name][i, 0, block] for name in net.blocks.tensors}
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
    assert net[1:3].blocks.networks == 2
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
