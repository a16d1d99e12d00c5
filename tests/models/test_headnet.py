import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.group.test_beyond_paper import (
    AFTER_WEIGHTS,
    ONES,
    at_first,
    at_last,
    edit,
    keep,
    normal,
    rotation,
)
from tests.models.checks import assert_gradients_reach
from tests.models.test_agreement import full_group
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import (
    HeadNet,
    HeadNetConfig,
    ModelFileError,
    NFNConfig,
    TransformerNFN,
    graph_features,
    load_model,
    net_graph,
    save_model,
)
from transformer_nfn.space import (
    GATED,
    RESIDUAL,
    BlockSpec,
    NetBatch,
    ShapeError,
    WeightBatch,
    sine_positions,
)

NET = paper_nets(3)
WORDS = NetBatch(NET.blocks, {}, NET.classifier)
TOKENS = 7


def all_rows(net: NetBatch) -> Callable[[Tensor], NetBatch]:
    return lambda rows: net if len(rows) == net.blocks.networks else net[: len(rows)]


def model(net: NetBatch = NET, **settings: Any) -> HeadNet:
    small = {"seed": 0, "positions": TOKENS, "width": 4, "hidden": 6, **settings}
    made = HeadNet(HeadNetConfig.of(net, **small)).double().eval()
    made.prepare(all_rows(net), torch.zeros(net.blocks.networks), 0.1)
    return made


def residual_nets(blocks: int = 3) -> NetBatch:
    spec = BlockSpec(RESIDUAL, D=32, heads=2, D_k=16, D_v=16, D_A=64)
    weights = WeightBatch.random(
        spec, networks=3, blocks=blocks, generator=generator(0), dtype=torch.float64
    )
    return NetBatch(weights, NET.embedding, NET.classifier)


@torch.no_grad()
def change(made: HeadNet, other: NetBatch, net: NetBatch = NET) -> float:
    return relative_error(made(other), made(net))


def classifier_moved(net: NetBatch) -> NetBatch:
    """Its hidden neurons in another order, each with a positive scale."""
    order = torch.randperm(32, generator=generator(1))
    scale = torch.rand(32, dtype=torch.float64, generator=generator(2)) + 0.5
    c = net.classifier
    return NetBatch(
        net.blocks,
        net.embedding,
        {
            "weight1": (c["weight1"] * scale)[:, :, order],
            "bias1": (c["bias1"] * scale)[:, order],
            "weight2": (c["weight2"] / scale[:, None])[:, order],
            "bias2": c["bias2"],
        },
    )


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_it_is_invariant_under_the_full_group(rounds: int) -> None:
    moved = classifier_moved(full_group(NET))
    assert relative_error(moved.blocks.flat(), NET.blocks.flat()) > 0.5
    assert change(model(rounds=rounds), moved) <= 1e-9


def test_features_for_trees_are_invariant_too() -> None:
    plain = graph_features(NET, TOKENS)
    moved = graph_features(classifier_moved(full_group(NET)), TOKENS)
    assert plain.dtype == torch.float64
    assert ((moved - plain).abs() <= 1e-8 * plain.abs().amax(0).clamp_min(1e-3)).all()
    assert graph_features(WORDS).shape[1] < graph_features(WORDS, TOKENS).shape[1] < plain.shape[1]


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_what_is_no_symmetry_changes_it(norm: Callable[..., NetBatch]) -> None:
    free = torch.linalg.qr(normal(32, 32))[0]
    assert change(model(), norm(NET, lambda w: w @ free, lambda w: free.T @ w)) > 1e-4
    assert change(model(), norm(NET, keep, lambda w: 2 * w)) > 1e-4


def test_the_first_layer_norm_has_fewer_symmetries() -> None:
    """Rotations that leave the positions alone; no others, and no scale."""
    r = rotation(torch.cat([ONES, sine_positions(TOKENS, 32).T], dim=1))
    assert change(model(), at_first(NET, lambda w: w @ r, lambda w: r.T @ w)) <= 1e-9
    r = rotation(ONES)
    assert change(model(), at_first(NET, lambda w: w @ r, lambda w: r.T @ w)) > 1e-4
    assert change(model(), at_first(NET, lambda w: 3.7 * w, keep)) > 1e-4


def test_a_sign_of_a_neuron_changes_it() -> None:
    signs = torch.where(torch.arange(64) == 5, -1.0, 1.0).double()
    flipped = edit(
        NET, 0, A=lambda w: w * signs, bA=lambda w: w * signs, B=lambda w: w * signs.unsqueeze(1)
    )
    assert change(model(), flipped) > 1e-7  # one neuron of 64


def test_it_knows_which_QK_belongs_to_which_VO() -> None:
    """The paper's model cannot: QKᵀ and VO are summed over heads there."""

    def swap(w: Tensor) -> Tensor:
        return w.flip(2)  # n c h …

    moved = edit(NET, 0, V=swap, O=swap)
    config = NFNConfig.of(PAPER_SPEC, blocks=2, channels=(3,), embedding=544, classifier=1386)
    papers = TransformerNFN(config).double()
    with torch.no_grad():
        assert relative_error(papers(moved), papers(NET)) <= 1e-10
    assert change(model(), moved) > 1e-3


def test_residual_nets() -> None:
    net = residual_nets()
    made = model(net)
    g = random_element(net.blocks.spec, networks=3, blocks=3, generator=generator(5))
    moved = classifier_moved(NetBatch(g(net.blocks), net.embedding, net.classifier))
    assert change(made, moved, net) <= 1e-9

    def shifted(w: Tensor) -> Tensor:
        return w + normal(*w.shape[:-1], 1)

    def read(w: Tensor) -> Tensor:  # not the biases below
        return torch.cat(
            [w[..., :32, :] + normal(*w.shape[:-2], 1, w.shape[-1]), w[..., 32:, :]], -2
        )

    moved = at_last(net, shifted, read)
    moved = edit(moved, 1, O=shifted, bO=shifted, A=read, Q=read, K=read, V=read)
    assert change(made, moved, net) <= 1e-9
    assert change(made, edit(net, 1, O=lambda w: 2 * w), net) > 1e-4  # no scale beside a skip


@pytest.mark.parametrize("positions", [0, TOKENS])
def test_nets_on_word_vectors_and_blocks_alone(positions: int) -> None:
    for net in (WORDS, NetBatch(NET.blocks), NetBatch(NET.blocks.select(blocks=slice(1)))):
        made = model(net, positions=positions, width=8, hidden=16)
        assert ("inputs" in made.config.shapes) == (positions > 0)
        assert_gradients_reach(made, net)
    spec = BlockSpec(GATED, D=6, heads=2, D_k=3, D_v=2, D_A=5)
    blocks = WeightBatch.random(
        spec, networks=2, blocks=2, generator=generator(0), dtype=torch.float64
    )
    g = random_element(spec, networks=2, blocks=2, generator=generator(5))
    assert change(model(NetBatch(blocks)), NetBatch(g(blocks)), NetBatch(blocks)) <= 1e-9


def test_positions_are_read_as_rows() -> None:
    graph = net_graph(WORDS, TOKENS)
    assert graph["inputs_to_heads"].shape == (3, TOKENS, 2, 4)
    assert (graph["inputs"][..., 1] == 1).all()
    assert net_graph(NET, TOKENS)["inputs"].shape == (3, 16 + TOKENS, 2)


def test_inputs_then_read_is_forward() -> None:
    made = model()
    assert torch.equal(made.read(made.inputs(NET)), made(NET))
    assert made.inputs(NET).dtype == torch.float64
    assert made.float().inputs(NET).dtype == torch.float32


def test_standardised_numbers_have_mean_0_and_deviation_1() -> None:
    net = paper_nets(40)
    made = model(net, positions=0)
    numbers = made._parts(made.inputs(net))
    for part in ("heads", "neurons_to_hidden"):
        scaled = made.standardised[part](numbers[part]).flatten(0, -2)
        assert scaled.mean(0).abs().max() < 0.1
        assert (scaled.std(0) > 0.8).all()
        assert (scaled.std(0) < 1.1).all()


def test_gradients_reach_every_parameter() -> None:
    assert_gradients_reach(model(rounds=2).train(), NET)


def test_dropout_and_noise_follow_the_step() -> None:
    inputs = model().inputs(NET)
    first, second = (model(dropout=0.5, noise=0.1, seed=0).train() for _ in range(2))
    state = torch.random.get_rng_state()
    one = first.read(inputs)
    assert torch.equal(one, second.read(inputs))
    assert not torch.equal(one, first.read(inputs))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.read(inputs), second.read(inputs))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_same_seed_same_parameters() -> None:
    def draw(seed: int) -> Tensor:
        return torch.cat([p.flatten() for p in model(seed=seed).parameters()])

    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


def test_it_is_small() -> None:
    assert HeadNet(HeadNetConfig.of(NET, positions=16)).parameter_count < 50_000


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    made = model().float()
    save_model(made, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert isinstance(again, HeadNet)
    assert again.config == made.config
    with torch.no_grad():
        assert torch.equal(again.eval()(NET), made(NET))


def test_a_file_that_claims_a_billion_blocks_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_model(model().float(), path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    config = json.loads(metadata["config"])
    for part in ("heads", "neurons", "heads_to_neurons"):
        config["shapes"][part][0] = 10**9
    config["shapes"]["neurons_to_heads"][0] = 10**9 - 1
    save_file(load_file(path), path, {**metadata, "config": json.dumps(config)})
    with pytest.raises(ModelFileError, match="1000000000 blocks"):
        load_model(path)


def test_shapes_that_are_no_graph_are_refused() -> None:
    shapes = model().config.shapes
    for wrong in (
        {part: shape for part, shape in shapes.items() if part != "classes"},
        {**shapes, "heads": (2, 2)},
        {**shapes, "heads": (3, 2, 18)},
        {**shapes, "more": (1,)},
    ):
        with pytest.raises(ValidationError):
            HeadNetConfig(shapes=wrong)


def test_other_networks_are_refused() -> None:
    with pytest.raises(ShapeError, match="reads graphs of"):
        model()(WORDS)
    with pytest.raises(ShapeError, match="got 5"):
        model().read(torch.zeros(3, 5, dtype=torch.float64))
    features = WeightBatch.random(PAPER_SPEC, networks=1, channels=2, generator=generator(0))
    with pytest.raises(ShapeError, match="2 channels are features"):
        model()(NetBatch(features))
