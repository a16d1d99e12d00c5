"""In float32 the model's output moves under the group by rounding only, ε·κ."""

import pytest
import torch

from tests.nets import PAPER_SPEC
from tests.strategies import generator
from transformer_nfn.group import conditioned, random_element, relative_error
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import NetBatch, WeightBatch, balance

UNIT = torch.finfo(torch.float32).eps / 2  # the rounding unit, 2^-24


@pytest.mark.parametrize("condition", [1.0, 1e1, 1e2, 1e3, 1e4])
@pytest.mark.parametrize("balanced", [False, True])
def test_change_of_the_output_is_rounding(condition: float, balanced: bool) -> None:
    model = TransformerNFN(NFNConfig.of(PAPER_SPEC, blocks=2))
    batch = WeightBatch.random(PAPER_SPEC, networks=8, blocks=2, generator=generator(0))
    g = random_element(
        PAPER_SPEC,
        networks=8,
        blocks=2,
        generator=generator(1),
        matrices=conditioned(condition),
    )
    moved = g(batch)
    if balanced:
        batch, moved = balance(batch).weights, balance(moved).weights
    with torch.no_grad():
        change = relative_error(model(NetBatch(moved)), model(NetBatch(batch)))
    assert 0 < change <= 10 * UNIT * (10 + condition)
