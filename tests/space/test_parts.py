"""Blocks are composed of parts, and nothing is decided by their names."""

import json
from dataclasses import replace

import pytest
import torch

from tests.strategies import generator
from transformer_nfn.layers import HeadAwareLayer
from transformer_nfn.models.gauge import canonical
from transformer_nfn.space import (
    BLOCKS,
    PAPER,
    RELU,
    RESIDUAL,
    ROTARY,
    Attention,
    Block,
    BlockSpec,
    DeclarationError,
    Experts,
    GatedMlp,
    Half,
    Mlp,
    NetBatch,
    NormPlace,
    Rope,
    ShapeError,
    WeightBatch,
    apply_blocks,
    apply_net,
    compose,
    declare,
)

SIZES = {"D": 6, "heads": 2, "D_k": 3, "D_v": 4, "D_A": 5}


def of(block: Block) -> WeightBatch:
    spec = BlockSpec(block, **SIZES)
    return WeightBatch.random(
        spec, networks=2, blocks=2, generator=generator(0), dtype=torch.float64
    )


def a_net(block: Block) -> NetBatch:
    g, D = generator(1), SIZES["D"]
    shapes = {"weight1": (2, D, 3), "bias1": (2, 3), "weight2": (2, 3, 4), "bias2": (2, 4)}
    classifier = {
        name: torch.randn(shape, generator=g, dtype=torch.float64) for name, shape in shapes.items()
    }
    return NetBatch(of(block), {}, classifier)


def shifted(net: NetBatch) -> NetBatch:
    """The same function under LayerNorm: a constant added to all that is written and read."""
    blocks = {name: tensor.clone() for name, tensor in net.blocks.tensors.items()}
    for name in ("O", "B", "bB"):
        blocks[name] += 0.7
    blocks["A"] += torch.randn(1, 1, 1, 1, SIZES["D_A"], generator=generator(2)).double()
    return NetBatch(WeightBatch(net.blocks.spec, blocks), net.embedding, net.classifier)


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_a_residual_block_of_another_name_keeps_every_invariance(name: str) -> None:
    net = a_net(replace(RESIDUAL, name=name))
    moved = shifted(net)
    tokens = torch.randn(3, 4, SIZES["D"], generator=generator(3), dtype=torch.float64)
    torch.testing.assert_close(apply_net(moved, tokens), apply_net(net, tokens))
    one, two = canonical(net).blocks, canonical(moved).blocks
    for tensor in one.tensors:
        torch.testing.assert_close(one[tensor], two[tensor], rtol=0, atol=1e-12)


def test_what_norms_hide_is_not_guessed() -> None:
    net = a_net(replace(RESIDUAL, halves=()))
    with pytest.raises(ShapeError, match=r"does not say which norms it has.*compose"):
        canonical(net)


def test_nothing_is_taken_out_of_what_a_norm_sees() -> None:
    """Under RMSNorm means count; with GELU a neuron has no scale."""
    rms = compose("mine", Half(Attention(), "rms"), Half(Mlp("gelu"), "rms"))
    net = a_net(rms)
    found = canonical(net).blocks
    assert all(torch.equal(found[name], net.blocks[name]) for name in found.tensors)
    relu = canonical(a_net(compose("m", Half(Attention(), "rms"), Half(Mlp("relu"), "rms"))))
    column = relu.blocks["A"].square().sum(-2) + relu.blocks["bA"].square()
    torch.testing.assert_close(column, torch.ones_like(column))


@pytest.mark.parametrize("block", [*BLOCKS.values(), RELU, ROTARY], ids=lambda block: block.name)
def test_a_block_is_saved_with_its_parts(block: Block) -> None:
    again = Block.from_dict(json.loads(json.dumps(block.to_dict())))
    assert again.halves == block.halves
    assert again.to_dict() == block.to_dict()


def test_tables_that_are_not_those_of_the_parts_are_refused() -> None:
    data = RESIDUAL.to_dict() | {"tensors": PAPER.to_dict()["tensors"]}
    with pytest.raises(DeclarationError, match="not its parts'"):
        Block.from_dict(data)
    for half in ({"part": {"kind": "os"}}, {}, {**data["halves"][0], "norm": "batch"}, "half"):
        with pytest.raises(DeclarationError, match="no half"):
            Block.from_dict(RESIDUAL.to_dict() | {"halves": [half]})


def test_parts_of_the_same_names_are_refused() -> None:
    with pytest.raises(DeclarationError, match="same name"):
        compose("twice", Half(Attention(), "rms"), Half(Attention(), "rms"))


def test_settings_of_the_function_are_no_part_of_the_tables() -> None:
    causal = Half(Attention(causal=True, rope=Rope(1e4), windows=(3,)), "rms")
    assert causal.to_dict() == Half(Attention(), "rms").to_dict()


def test_causal_tokens_see_no_later_ones_and_windows_end() -> None:
    g = generator(4)
    w = {n: t[:, 0, 0] for n, t in of(RESIDUAL).tensors.items()}
    x = torch.randn(2, 9, SIZES["D"], generator=g, dtype=torch.float64)
    later = x.clone()
    later[:, 6:] = 1.0
    part = Attention(causal=True)
    assert torch.equal(part(w, x)[:, :6], part(w, later)[:, :6])
    assert not torch.allclose(Attention()(w, x)[:, :6], Attention()(w, later)[:, :6])
    # Of a window of 3 tokens one is the token itself.
    first = x.clone()
    first[:, :4] = 1.0
    near = Attention(causal=True, windows=(None, 3))
    assert torch.allclose(near(w, x, 1)[:, 6:], near(w, first, 1)[:, 6:])
    assert not torch.allclose(near(w, x, 1)[:, 5], near(w, first, 1)[:, 5])
    assert torch.equal(near(w, x, 0), part(w, x))


def test_places_of_norms() -> None:
    """The same two parts: before, after, and after the sum are three functions."""
    found = []
    tokens = torch.randn(2, 4, SIZES["D"], generator=generator(3), dtype=torch.float64)
    for place in NormPlace:
        halves = (Half(Attention(), "layer", place), Half(Mlp("gelu"), "layer", place))
        found.append(apply_blocks(of(compose("mine", *halves)), tokens))
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[1], found[2])
    torch.testing.assert_close(found[2].mean(-1), torch.zeros(2, 4).double(), rtol=0, atol=1e-12)


def test_a_tensor_that_no_unit_owns_is_refused() -> None:
    data = RESIDUAL.to_dict()
    tensors = data["tensors"] | {"extra": "x a"}
    axes = {label: RESIDUAL.axes[label] for label in data["axes"]}
    block = declare("mine", axes, tensors, data["products"])
    with pytest.raises(ShapeError, match="extra, which no head or neuron owns"):
        HeadAwareLayer(BlockSpec(block, **SIZES), outputs=2)


def test_gated_parts_with_biases_and_scales_compute_what_plain_ones_do() -> None:
    g = generator(5)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    w = {"gate": draw(2, 7, 5), "up": draw(2, 7, 5), "down": draw(2, 5, 6), "bdown": draw(2, 6)}
    x = draw(2, 3, 6)
    z = torch.cat([x, torch.ones(2, 3, 1).double()], -1)
    wanted = (torch.nn.functional.silu(z @ w["gate"]) * (z @ w["up"])) @ w["down"]
    found = GatedMlp("silu", bias_row=True, scales=True)(
        w | {"up": w["up"][..., None], "down": w["down"][:, :, None]}, x
    )
    torch.testing.assert_close(found, wanted + w["bdown"][:, None])


@pytest.mark.parametrize(
    ("raw", "scaled"),
    [(False, False), (True, False), (False, True)],
    ids=["plain", "raw", "scaled"],
)
def test_what_a_norm_hides_of_a_block_depends_on_who_reads_it(raw: bool, scaled: bool) -> None:
    """The canonical form of a network computes what the network does, whatever its parts are."""
    halves = (
        Half(Attention(scaled=scaled), "layer", raw=raw),
        Half(Mlp("gelu", scaled=scaled), "layer", raw=raw),
    )
    spec = BlockSpec(compose("mine", *halves), D=6, heads=2, D_k=2, D_v=3, D_A=5)
    seed = torch.Generator().manual_seed(0)
    blocks = WeightBatch.random(spec, networks=2, blocks=2, generator=seed, dtype=torch.float64)
    shapes = {"weight1": (6, 4), "bias1": (4,), "weight2": (4, 3), "bias2": (3,)}
    classifier = {
        name: torch.randn(2, *shape, generator=seed, dtype=torch.float64)
        for name, shape in shapes.items()
    }
    net = NetBatch(blocks, {}, classifier)
    inputs = torch.randn(3, 4, 6, generator=seed, dtype=torch.float64)
    out, again = apply_net(net, inputs, eps=1e-5), apply_net(canonical(net), inputs, eps=1e-5)
    assert torch.allclose(out, again, rtol=1e-9, atol=1e-12)


def test_a_parallel_block_is_saved_as_one() -> None:
    halves = Half(Attention(), "layer"), Half(Mlp("gelu"), "layer")
    block = compose("mine", *halves, parallel=True)
    again = Block.from_dict(json.loads(json.dumps(block.to_dict())))
    assert again.parallel
    assert "parallel" not in compose("mine", *halves).to_dict()
    with pytest.raises(DeclarationError, match="side by side is added to it, after a norm"):
        compose(
            "mine", *(replace(half, place=NormPlace.AFTER_SUM) for half in halves), parallel=True
        )


def test_a_choice_that_is_made_gradually_is_the_same_where_it_is_clear() -> None:
    sharp = Experts("silu", chosen=2)
    smooth = sharp.without_jumps()
    clear = torch.tensor([[3.0, -1.0, 2.0, 1.74]])  # more than 0.25 apart
    assert torch.equal(sharp.shares(clear), smooth.shares(clear))
    assert sharp.shares(clear)[0, 1:].tolist()[::2] == [0.0, 0.0]
    near = torch.tensor([[3.0, -1.0, 2.0, 2.0 - 1e-6], [3.0, -1.0, 2.0, 2.0 + 1e-6]])
    jump, step = (part.shares(near).diff(dim=0).abs().max().item() for part in (sharp, smooth))
    assert jump > 0.2
    assert step < 1e-5
    assert smooth.shares(near).sum(dim=-1).tolist() == pytest.approx([1.0, 1.0])
    one, two = smooth.shares(near)[0, 2:]
    assert one.item() == pytest.approx(two.item(), rel=1e-4)  # of a tie each has half


def test_shares_that_are_not_renormalised_are_those_of_the_softmax() -> None:
    scores = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    shares = Experts("silu", chosen=3, renormalised=False).shares(scores)
    largest, which = scores.softmax(-1).topk(3)
    assert torch.equal(shares.gather(-1, which), largest)
    assert ((shares > 0).sum(-1) == 3).all()
