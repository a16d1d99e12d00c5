from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.group.test_beyond_paper import AFTER_WEIGHTS, ALL, ONES, edit, normal, rotation
from tests.models.checks import assert_gradients_reach
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import AgreementConfig, AgreementProbes, load_model, save_model
from transformer_nfn.models.responses import response_features
from transformer_nfn.space import NetBatch, ShapeError, WeightBatch, apply_net

NET = paper_nets(3)


def probes(net: NetBatch = NET, eps: float = 0.0, **settings: Any) -> AgreementProbes:
    config = AgreementConfig.of(net, tokens=5, eps=eps, **{"probes": 7, "seed": 0, **settings})
    return AgreementProbes(config).double().eval()


def full_group(net: NetBatch) -> NetBatch:
    """The paper's group and all that docs/reference/symmetries.md lists beyond it, in turn."""
    g = random_element(PAPER_SPEC, networks=3, blocks=2, generator=generator(5))
    net = NetBatch(g(net.blocks), net.embedding, net.classifier)
    scale = torch.rand(64, dtype=torch.float64, generator=generator(3)) + 0.5
    for block in (0, 1):
        net = edit(
            net,
            block,
            A=lambda w: w * scale,
            bA=lambda w: w * scale,
            B=lambda w: w / scale.unsqueeze(1),
        )
    r = rotation(ONES)
    for norm in AFTER_WEIGHTS:
        net = norm(net, lambda w: 1.7 * w @ r, lambda w: r.T @ w)

    def along(w: Tensor) -> Tensor:
        return w + normal(*w.shape[:-1], 1)

    for norm in ALL:
        net = norm(net, along, lambda w: w + normal(*w.shape[:-2], 1, w.shape[-1]))
    return net


def differs(one: NetBatch, other: NetBatch) -> tuple[float, float]:
    """How far the agreement of two batches is apart, and their responses."""
    with torch.no_grad():
        return (
            relative_error(probes()(one), probes()(other)),
            relative_error(probes().responses(one), probes().responses(other)),
        )


def test_it_is_invariant_under_the_full_group() -> None:
    moved = full_group(NET)
    assert relative_error(moved.blocks.flat(), NET.blocks.flat()) > 0.5
    assert max(differs(moved, NET)) <= 1e-9


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_what_is_no_symmetry_changes_it(norm: Callable[..., NetBatch]) -> None:
    free = torch.linalg.qr(normal(32, 32))[0]
    moved = norm(NET, lambda w: w @ free, lambda w: free.T @ w)
    assert min(differs(moved, NET)) > 1e-3


def test_exchanging_the_values_of_two_heads_changes_it() -> None:
    """The paper's model cannot see it: QKᵀ and VO are summed over heads there."""

    def swap(w: Tensor) -> Tensor:
        return w.flip(2)  # n c h …

    moved = edit(NET, 0, V=swap, O=swap)
    for product in ("QK", "VO"):
        assert relative_error(moved.blocks.product(product), NET.blocks.product(product)) < 1e-12
    assert min(differs(moved, NET)) > 1e-3


def test_the_prediction_is_the_mean_agreement_with_the_consensus() -> None:
    m = probes(noises=())
    m.set_consensus(asking(NET, 0.0), torch.tensor([0, 2]))
    with torch.no_grad():
        said = torch.stack([apply_net(NET, some, 0.0).softmax(-1) for some in m.probe_sets()], 1)
        consensus = (said[0] + said[2]) / 2
        torch.testing.assert_close(m.consensus, consensus)
        share = (said * consensus).sum(-1).mean((1, 2))
        assert relative_error(m(NET), torch.log(share / (1 - share))) < 1e-12
    assert_gradients_reach(probes(), NET)


def test_probe_sets_are_the_probes_noise_blends_and_collages() -> None:
    m = probes(noises=(2.0,))
    with torch.no_grad():
        plain, noisy, blend, collage = m.probe_sets()
        q = m.probes
        assert torch.equal(plain, q)
        torch.testing.assert_close(noisy - q, 2 * q.std(correction=0) * m.noise[0])
        torch.testing.assert_close(blend[3], (q[3] + q[m.partner[0, 3]]) / 2)
        for token in range(5):
            source = q[3] if m.own[3, token] else q[m.partner[1, 3]]
            assert torch.equal(collage[3, token], source[token])


def one_hot(right: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(right, 3).double()


def test_responses_count_right_answers() -> None:
    right = torch.tensor([0, 1, 2, 0])
    sure = torch.full((2, 4, 3), -20.0, dtype=torch.float64)
    for probe in range(4):
        sure[0, probe, right[probe]] = 20.0  # all right
        sure[1, probe, 1] = 20.0  # says 1 to every probe: one of four right
    found = response_features(sure.log_softmax(-1), one_hot(right))
    torch.testing.assert_close(found[:, 1], torch.tensor([1.0, 0.25], dtype=torch.float64))
    per_class = found[:, -11:-8]  # shares of right answers of the classes, sorted
    assert per_class.tolist() == [[1, 1, 1], [0, 0, 1]]


def test_responses_do_not_depend_on_the_order_of_probes_and_classes() -> None:
    answers, consensus = normal(2, 8, 3).log_softmax(-1), normal(8, 3).softmax(-1)
    found = response_features(answers, consensus)
    order = torch.tensor([2, 0, 3, 1, 7, 6, 5, 4])
    torch.testing.assert_close(response_features(answers[:, order], consensus[order]), found)
    names = torch.tensor([1, 2, 0])
    torch.testing.assert_close(response_features(answers[:, :, names], consensus[:, names]), found)


def test_the_first_group_of_responses_is_where_the_consensus_is_sure() -> None:
    consensus = torch.tensor([[0.5, 0.5, 0.0]] * 3 + [[1.0, 0.0, 0.0]], dtype=torch.float64)
    answers = torch.tensor([[[0.9, 0.1, 0.0]] * 3 + [[0.0, 0.2, 0.8]]], dtype=torch.float64)
    right, agreement = response_features(answers.clamp_min(1e-9).log(), consensus)[
        0, -8:-6
    ].tolist()
    assert right == 0
    assert agreement < 1e-6


def test_agreement_makes_good_networks_right() -> None:
    net = paper_nets(10)
    m = probes(net, probes=10)
    with torch.no_grad():
        before = m(net).sigmoid().mean()
    m.agree(asking(net), torch.arange(10), steps=30)
    with torch.no_grad():
        assert m(net).sigmoid().mean() > before + 0.02


def asking(net: NetBatch, eps: float = 1e-5) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda rows, inputs: apply_net(select(net, rows), inputs, eps)


def select(net: NetBatch, rows: Tensor) -> NetBatch:
    tensors = {name: tensor[rows] for name, tensor in net.blocks.tensors.items()}
    return NetBatch(
        WeightBatch(net.blocks.spec, tensors),
        {name: tensor[rows] for name, tensor in net.embedding.items()},
        {name: tensor[rows] for name, tensor in net.classifier.items()},
    )


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    m = AgreementProbes(AgreementConfig.of(NET, tokens=5, probes=4))
    save_model(m, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert isinstance(again, AgreementProbes)
    assert again.config == m.config
    assert torch.equal(again.probes, m.probes)


def test_other_networks_are_refused() -> None:
    with pytest.raises(ShapeError, match="have no classifier"):
        AgreementConfig.of(NetBatch(NET.blocks), tokens=5)
    three = {**NET.classifier, "weight2": normal(3, 32, 3), "bias2": normal(3, 3)}
    with pytest.raises(ShapeError, match="of 10 classes, these networks have 3"):
        probes()(NetBatch(NET.blocks, NET.embedding, three))
