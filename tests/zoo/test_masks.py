import pytest
import torch
from torch import Tensor

from transformer_nfn.zoo.training.masks import POOL, Masks, mask_pool

LIKE = torch.zeros((), dtype=torch.float64)
LAYERS, ROWS, WIDTH = 3, 10, 7


def masks(rates: list[float], seeds: list[int], rows: int = ROWS) -> Masks:
    return Masks(rates, seeds, layers=LAYERS, rows=rows, width=WIDTH, like=LIKE)


def drawn(rates: list[float], seeds: list[int], draws: int = 1) -> Tensor:
    """The masks of the last of some draws."""
    made = masks(rates, seeds)
    for _ in range(draws):
        made.draw()
    return made.part(0, ROWS).clone()


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.15, 0.2, 0.5])
def test_every_column_of_a_pool_drops_the_same_number(rate):
    pool, dropped = mask_pool(rate, WIDTH), round(rate * POOL)
    assert (pool == 0).sum(dim=0).tolist() == [dropped] * WIDTH
    kept = torch.tensor(POOL / (POOL - dropped))
    assert pool.unique().tolist() == [0.0, kept.item()]
    torch.testing.assert_close(pool.double().mean(dim=0), torch.ones(WIDTH, dtype=torch.float64))


def test_columns_and_rows_of_a_pool_are_dropped_independently():
    pool = (mask_pool(0.2, WIDTH) == 0).double()
    correlations = torch.corrcoef(pool.T) - torch.eye(WIDTH, dtype=torch.float64)
    assert correlations.abs().max() < 5 / POOL**0.5
    assert torch.equal(mask_pool(0.2, WIDTH), mask_pool(0.2, WIDTH))
    assert not torch.equal(mask_pool(0.2, WIDTH) == 0, mask_pool(0.21, WIDTH) == 0)


def test_nothing_is_dropped_at_rate_zero():
    assert torch.equal(mask_pool(0.0, WIDTH), torch.ones(POOL, WIDTH))
    both = drawn([0.0, 0.2], [1, 1])
    assert (both[0] == 1).all()
    assert (both[1] == 0).any()


def test_masks_have_one_number_for_each_net_layer_token_and_coordinate():
    whole = drawn([0.1, 0.2], [1, 2])
    assert whole.shape == (2, LAYERS, ROWS, WIDTH)
    assert whole.dtype == LIKE.dtype


def test_the_masks_of_a_net_do_not_depend_on_its_neighbours():
    together = drawn([0.1, 0.2, 0.05, 0.2], [11, 12, 13, 14], draws=3)
    for place, (rate, seed) in enumerate([(0.1, 11), (0.2, 12), (0.05, 13), (0.2, 14)]):
        assert torch.equal(together[place], drawn([rate], [seed], draws=3)[0])
    assert torch.equal(together[[3, 1]], drawn([0.2, 0.2], [14, 12], draws=3))


def test_a_part_is_what_the_whole_has_there():
    made = masks([0.1, 0.2], [1, 2])
    made.draw()
    whole = made.part(0, ROWS).clone()
    for first, stop in ((0, 4), (4, 8), (8, 10), (3, 4), (0, ROWS)):
        assert torch.equal(made.part(first, stop), whole[:, :, first:stop])
    assert not torch.equal(whole[:, :, :4], whole[:, :, 4:8])
    made.draw()
    assert not torch.equal(made.part(0, 4), whole[:, :, :4])


def test_seeds_draws_layers_and_tokens_differ():
    first, second = drawn([0.2, 0.2], [1, 2])
    assert not torch.equal(first, second)
    assert torch.equal(first, drawn([0.2], [1])[0])
    assert not torch.equal(first, drawn([0.2], [1], draws=2)[0])
    for axis in (0, 1):
        assert not torch.equal(first.select(axis, 0), first.select(axis, 1))


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_over_many_draws_each_coordinate_is_dropped_at_the_rate(rate):
    made = masks([rate], [3], rows=5000)
    made.draw()
    dropped = (made.part(0, 5000)[0] == 0).double()  # layers rows x
    count = LAYERS * 5000
    five_sigma = 5 * (rate * (1 - rate) / count) ** 0.5
    assert (dropped.mean(dim=(0, 1)) - rate).abs().max() < five_sigma + 0.5 / POOL
    # Negative control: the bound tells this rate from one that is a tenth larger.
    assert (dropped.mean(dim=(0, 1)) - 1.1 * rate).abs().max() > 0.05 * rate
