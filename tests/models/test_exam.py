from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.group.test_beyond_paper import AFTER_WEIGHTS, ALL, ONES, edit, normal, rotation
from tests.models.checks import assert_gradients_reach
from tests.nets import PAPER_SPEC, paper_nets
from tests.strategies import generator
from transformer_nfn.group import random_element, relative_error
from transformer_nfn.models import Exam, ExamConfig, load_model, save_model
from transformer_nfn.space import NetBatch, ShapeError

NET = paper_nets(3)


def exam(net: NetBatch = NET, eps: float = 0.0, **settings: int) -> Exam:
    config = ExamConfig.of(net, tokens=5, eps=eps, **{"questions": 7, "at_once": 3, **settings})
    return Exam(config).double().eval()


def full_group(net: NetBatch) -> NetBatch:
    """The paper's group and all that docs/group.md lists beyond it, one after the other."""
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


def test_it_is_invariant_under_the_full_group() -> None:
    moved = full_group(NET)
    assert relative_error(moved.blocks.flat(), NET.blocks.flat()) > 0.5
    with torch.no_grad():
        assert relative_error(exam()(moved), exam()(NET)) <= 1e-9


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_what_is_no_symmetry_changes_the_grade(norm: Callable[..., NetBatch]) -> None:
    free = torch.linalg.qr(normal(32, 32))[0]
    moved = norm(NET, lambda w: w @ free, lambda w: free.T @ w)
    with torch.no_grad():
        assert relative_error(exam()(moved), exam()(NET)) > 1e-3


def test_exchanging_the_values_of_two_heads_changes_the_grade() -> None:
    """The paper's model cannot see it: QKᵀ and VO are summed over heads there."""

    def swap(w: Tensor) -> Tensor:
        return w.flip(2)  # n c h …

    moved = edit(NET, 0, V=swap, O=swap)
    for product in ("QK", "VO"):
        assert relative_error(moved.blocks.product(product), NET.blocks.product(product)) < 1e-12
    with torch.no_grad():
        assert relative_error(exam()(moved), exam()(NET)) > 1e-3


def test_the_grade_is_the_probability_of_the_right_answer() -> None:
    m = exam()
    with torch.no_grad():
        grades = m.grade(NET)
        assert grades.shape == (3, 7)
        from transformer_nfn.space import apply_net

        said = apply_net(NET, m.questions, 0.0).softmax(-1)
        assert torch.equal(grades[:, 4], said[:, 4, 4])
        share = grades.mean(dim=1)
        assert relative_error(m(NET), torch.log(share / (1 - share))) < 1e-12


def test_training_asks_some_at_a_time_and_all_in_the_end() -> None:
    m = exam(questions=6, at_once=4).train()
    asked = set()
    for _ in range(20):
        which = m._next()
        assert len(set(which.tolist())) == 4
        asked |= set(which.tolist())
    assert asked == set(range(6))
    assert_gradients_reach(exam(questions=3, at_once=3).train(), NET)


def test_agreement_makes_good_networks_right() -> None:
    net = paper_nets(40)
    accuracy = torch.linspace(0, 1, 40, dtype=torch.float64)
    m = exam(net, questions=10, agreement_steps=30)
    good = net.select(slice(30, 40))
    with torch.no_grad():
        before = m.grade(good).mean()

    def rows(which: Tensor) -> NetBatch:
        parts = [net.select(slice(int(i), int(i) + 1)) for i in which]
        from transformer_nfn.space import WeightBatch

        return NetBatch(
            WeightBatch.cat([part.blocks for part in parts], "networks"),
            {name: torch.cat([part.embedding[name] for part in parts]) for name in net.embedding},
            {name: torch.cat([part.classifier[name] for part in parts]) for name in net.classifier},
        )

    m.prepare(rows, accuracy, 0.05)
    with torch.no_grad():
        assert m.eval().grade(good).mean() > before + 0.02


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    m = Exam(ExamConfig.of(NET, tokens=5, questions=4))
    save_model(m, tmp_path / "m.safetensors")
    again = load_model(tmp_path / "m.safetensors")
    assert isinstance(again, Exam)
    assert again.config == m.config
    assert torch.equal(again.questions, m.questions)


def test_other_networks_are_refused() -> None:
    with pytest.raises(ShapeError, match="have no classifier"):
        ExamConfig.of(NetBatch(NET.blocks), tokens=5)
    three = {**NET.classifier, "weight2": normal(3, 32, 3), "bias2": normal(3, 3)}
    with pytest.raises(ShapeError, match="10 classes, these networks 3"):
        exam()(NetBatch(NET.blocks, NET.embedding, three))
