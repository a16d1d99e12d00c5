import pytest
import torch
from scipy.stats import kendalltau

from transformer_nfn.models import LOSSES, ranking_loss
from transformer_nfn.space import ShapeError


def test_ranking_loss_falls_with_tau() -> None:
    targets = torch.tensor([0.1, 0.4, 0.4, 0.9])
    orders = [targets, targets[[1, 0, 2, 3]], -targets]
    losses = [ranking_loss(5 * scores, targets).item() for scores in orders]
    taus = [kendalltau(scores, targets).statistic for scores in orders]
    assert losses == sorted(losses)
    assert taus == sorted(taus, reverse=True)


def test_equal_targets_say_nothing() -> None:
    scores = torch.tensor([0.3, -0.2], requires_grad=True)
    loss = ranking_loss(scores, torch.ones(2))
    loss.backward()
    assert loss == 0
    assert (scores.grad == 0).all()


def test_pairs_are_counted_once() -> None:
    """Of two targets one pair: log(1 + e^-gap)."""
    loss = ranking_loss(torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(loss, torch.tensor(-2.0).exp().log1p())


def test_each_kind_of_target_has_a_loss() -> None:
    assert set(LOSSES) == {"regression", "classification", "ranking"}
    assert LOSSES["classification"](torch.zeros(2, 3), torch.tensor([0, 2])) > 0


@pytest.mark.parametrize("shapes", [((3, 1), (3,)), ((3,), (3, 1)), ((3,), (2,))])
def test_one_number_for_each_network(shapes) -> None:
    with pytest.raises(ShapeError, match="one number for each network"):
        ranking_loss(*(torch.zeros(shape) for shape in shapes))


def test_many_networks_in_half_precision_and_endless_scores() -> None:
    targets = torch.linspace(0, 1, 400)
    assert ranking_loss(targets.half(), targets).isfinite()
    scores = torch.tensor([0.0, torch.inf], requires_grad=True)
    loss = ranking_loss(scores, torch.tensor([0.0, 1.0]))
    assert loss == 0
