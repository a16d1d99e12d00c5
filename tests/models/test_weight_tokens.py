import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.checks import assert_gradients_reach, assert_seeded
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import (
    ModelFileError,
    TokenNet,
    TokenNetConfig,
    load_model,
    save_model,
)
from transformer_nfn.space import RESIDUAL, BlockSpec, NetBatch, ShapeError, WeightBatch

NET = paper_nets(3)
SMALL: dict[str, Any] = {"width": 8, "heads": 2, "hidden": 6}


def model(net: NetBatch = NET, seed: int = 0, **settings: Any) -> TokenNet:
    return TokenNet(TokenNetConfig.of(net, **{**SMALL, "seed": seed, **settings})).double()


def tensors_of(net: NetBatch) -> dict[str, Tensor]:
    """The stored tensors, one by one; a change of one changes the network."""
    blocks = {f"blocks.{name}": tensor for name, tensor in net.blocks.tensors.items()}
    parts = {"embedding": net.embedding, "classifier": net.classifier}
    outside = {f"{p}.{name}": t for p, tensors in parts.items() for name, t in tensors.items()}
    return blocks | outside


def copied(net: NetBatch) -> NetBatch:
    return NetBatch(
        net.blocks.map(Tensor.clone),
        {name: tensor.clone() for name, tensor in net.embedding.items()},
        {name: tensor.clone() for name, tensor in net.classifier.items()},
    )


RESIDUAL_SPEC = BlockSpec(RESIDUAL, D=32, heads=2, D_k=3, D_v=5, D_A=7)
RESIDUAL_NET = NetBatch(
    WeightBatch.random(
        RESIDUAL_SPEC, networks=3, blocks=2, generator=generator(0), dtype=torch.float64
    ),
    NET.embedding,
    NET.classifier,
)
NETS = {"paper": NET, "residual": RESIDUAL_NET, "words": NetBatch(NET.blocks, {}, NET.classifier)}


def test_tokens_of_the_papers_net() -> None:
    """Each block: Q, K, V and O 8 tokens each, A and B 16, their biases 1 each."""
    made = TokenNet(TokenNetConfig.of(NET, seed=0)).double()
    assert made.token_count == 2 * (4 * 8 + 2 * 16 + 2) + (4 + 1) + (8 + 1 + 3 + 1) == 150
    assert made.tokens(NET).shape == (3, 150, 128)
    assert made(NET).shape == (3,)


def test_a_token_is_whole_rows_or_a_part_of_one() -> None:
    tokens = model(numbers=128).tokens(NET)
    assert torch.equal(tokens[:, 0], NET.blocks["Q"][:, 0, 0, 0, :8].flatten(1))
    assert torch.equal(tokens[:, 7], NET.blocks["Q"][:, 0, 0, 1, 24:].flatten(1))
    assert torch.equal(tokens[:, 8], NET.blocks["Q"][:, 0, 1, 0, :8].flatten(1))
    # Rows of ten: twelve of them are in a token, and eight of its numbers are nothing.
    weight = NET.classifier["weight2"]
    assert torch.equal(tokens[:, -4, :120], weight[:, :12].flatten(1))
    assert torch.equal(tokens[:, -2, :80], weight[:, 24:].flatten(1))
    assert torch.equal(tokens[:, -1, :10], NET.classifier["bias2"])
    for place, used in ((-4, 120), (-2, 80), (-1, 10)):
        assert not tokens[:, place, used:].any()
    # Rows of 16 are cut where a token has room for 12.
    tokens = model(numbers=12).tokens(NET)
    assert torch.equal(tokens[:, 0], NET.blocks["Q"][:, 0, 0, 0, 0, :12])
    assert torch.equal(tokens[:, 1, :4], NET.blocks["Q"][:, 0, 0, 0, 0, 12:])
    assert not tokens[:, 1, 4:].any()
    assert torch.equal(tokens[:, 2], NET.blocks["Q"][:, 0, 0, 0, 1, :12])


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("numbers", [1, 7, 12, 64, 128, 5000])
def test_every_stored_number_is_in_the_tokens_once(kind: str, numbers: int) -> None:
    net = copied(NETS[kind])
    count = 0
    for tensor in tensors_of(net).values():
        place = torch.arange(1, tensor[0].numel() + 1, dtype=torch.float64) + count
        tensor[:] = place.reshape(tensor.shape[1:])
        count += tensor[0].numel()
    made = model(net, numbers=numbers)
    tokens = made.tokens(net)
    assert tokens.shape == (3, made.token_count, numbers)
    for row in tokens:
        assert torch.equal(row[row != 0].sort().values, torch.arange(1.0, count + 1).double())


@pytest.mark.parametrize("name", tensors_of(RESIDUAL_NET))
def test_a_change_of_one_number_of_any_tensor_changes_the_output(name: str) -> None:
    made = model(RESIDUAL_NET)
    moved = copied(RESIDUAL_NET)
    tensors_of(moved)[name][1].flatten()[-1] += 0.5
    with torch.no_grad():
        changed = (made(moved) - made(RESIDUAL_NET)).abs()
    assert changed[1] > 1e-9
    assert not changed[[0, 2]].any()


@pytest.mark.parametrize("way", ["tensor", "block", "place"])
def test_where_a_token_is_matters(way: str) -> None:
    """Without positions the mean of the tokens could not tell them apart."""
    moved = copied(NET)
    tensors = tensors_of(moved)
    if way == "tensor":
        queries = tensors["blocks.Q"].clone()
        tensors["blocks.Q"].copy_(tensors["blocks.K"])
        tensors["blocks.K"].copy_(queries)
    elif way == "block":
        for name in NET.blocks.tensors:
            tensors[f"blocks.{name}"].copy_(NET.blocks[name].flip(2))
    else:
        tensors["blocks.A"].copy_(NET.blocks["A"].roll(2, dims=3))  # two rows make a token
    made = model()
    before, after = (made.tokens(net).sum(dim=1) for net in (NET, moved))
    torch.testing.assert_close(before, after)
    with torch.no_grad():
        assert relative_error(made(moved), made(NET)) > 1e-6


def test_tokens_attend_to_each_other() -> None:
    """What is behind the last layer at one token depends on another."""
    made = model()
    states = torch.randn(1, 5, 8, generator=generator(0), dtype=torch.float64)
    other = states.clone()
    other[0, 0] += torch.arange(8.0).double()
    with torch.no_grad():
        change = (made.layers[0](other) - made.layers[0](states)).abs()
    assert (change[0, 1:].amax(dim=1) > 1e-6).all()


def test_an_encoder_layer_is_that_of_torch() -> None:
    layer = model().layers[0]
    theirs = torch.nn.TransformerEncoderLayer(
        8, 2, 6, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    state = {
        "self_attn.in_proj_weight": layer.reads.weight,
        "self_attn.in_proj_bias": layer.reads.bias,
        "self_attn.out_proj.weight": layer.writes.weight,
        "self_attn.out_proj.bias": layer.writes.bias,
        "linear1.weight": layer.first.weight,
        "linear1.bias": layer.first.bias,
        "linear2.weight": layer.second.weight,
        "linear2.bias": layer.second.bias,
    }
    theirs.load_state_dict(state, strict=False)
    states = torch.randn(3, 5, 8, generator=generator(0), dtype=torch.float64)
    torch.testing.assert_close(layer(states), theirs(states))


def test_it_is_not_invariant() -> None:
    """Negative control: the group changes the tokens, and nothing takes that back."""
    g = random_element(PAPER_SPEC, blocks=2, generator=generator(0))
    moved = NetBatch(g(NET.blocks), NET.embedding, NET.classifier)
    with torch.no_grad():
        assert relative_error(model()(moved), model()(NET)) > 1e-3


def test_gradients_reach_every_parameter() -> None:
    made = model()
    assert_gradients_reach(made, NET)
    for table in (made.tensor_positions, made.block_positions, made.places):
        assert table.grad is not None
        assert (table.grad.abs().sum(dim=1) > 0).all()


def test_same_seed_same_model_and_the_global_generator_is_untouched() -> None:
    assert_seeded(lambda seed: model(seed=seed))


def test_the_order_in_which_tensors_are_given_does_not_matter() -> None:
    classifier = dict(reversed(NET.classifier.items()))
    with torch.no_grad():
        assert torch.equal(model()(NetBatch(NET.blocks, NET.embedding, classifier)), model()(NET))


def test_other_networks_are_refused() -> None:
    with pytest.raises(ShapeError, match="the model reads networks of"):
        model()(NETS["words"])
    with pytest.raises(ShapeError, match="the model reads networks of"):
        model()(NetBatch(NET.blocks.select(blocks=slice(1)), NET.embedding, NET.classifier))
    features = WeightBatch.random(PAPER_SPEC, networks=1, channels=2, generator=generator(0))
    with pytest.raises(ShapeError, match="2 channels are features"):
        model()(NetBatch(features))


def test_a_tensor_with_one_number_is_a_row() -> None:
    net = NetBatch(NET.blocks, {"temperature": NET.classifier["bias2"][:, 0]}, NET.classifier)
    made = model(net)
    place = made.tokens(net)[:, 2 * 66]
    assert torch.equal(place[:, 0], NET.classifier["bias2"][:, 0])
    assert not place[:, 1:].any()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValidationError, match="width=8 must be a multiple of heads=3"):
        model(heads=3)
    with pytest.raises(ValidationError):
        TokenNetConfig(tensors={})
    for shape in ((), (0, 3)):
        with pytest.raises(ValidationError):
            TokenNetConfig(tensors={"A": shape})


@pytest.mark.parametrize("shape", [[10**9, 32, 64], [2, 10**9, 64], [2, 10**30, 64]])
def test_a_file_that_claims_huge_tensors_is_refused_at_once(
    tmp_path: Path, shape: list[int]
) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model(), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    config = json.loads(metadata["config"])
    config["tensors"]["blocks.A"] = shape
    save_file(load_file(path), path, {**metadata, "config": json.dumps(config)})
    with pytest.raises(ModelFileError, match="do not fit its config"):
        load_model(path)
