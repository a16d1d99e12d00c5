"""What rounding does, number by number, and how it is carried to the units of a block."""

from pathlib import Path

import pytest
import torch

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.residuals import judged
from transformer_nfn.identity.comparing.rounding import jittered, spread
from transformer_nfn.identity.comparing.units import (
    expected_squares,
    product_squares,
    squared_distances,
    with_units_of,
)
from transformer_nfn.identity.comparing.variance import block_variances
from transformer_nfn.identity.elements.acting import canonical_block
from transformer_nfn.identity.elements.digits import last_digit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_last_digit_is_the_distance_to_the_next_number(dtype: torch.dtype) -> None:
    seed = torch.Generator().manual_seed(0)
    numbers = torch.randn(500, generator=seed).mul(torch.logspace(-3, 2, 500)).to(dtype)
    up = torch.nextafter(numbers.abs(), torch.tensor(torch.inf, dtype=dtype))
    assert torch.equal(last_digit(numbers), up.double() - numbers.abs().double())


def test_a_stored_zero_is_exact(tmp_path: Path) -> None:
    folder = made.save(made.model("gpt2"), tmp_path)
    name = "transformer.h.0.mlp.c_fc.bias"
    with Checkpoint(folder) as checkpoint:
        value = checkpoint.files.read(name)
    assert spread(torch.zeros(3)).max() < 1e-40
    net = made.model("gpt2")
    with torch.no_grad():
        net.transformer.h[0].mlp.c_fc.bias.zero_()
    # In float16 the smallest number is not small: a norm with a tiny ε makes a token of it.
    for dtype in (torch.float32, torch.float16):
        with Checkpoint(made.save(net, tmp_path / f"{dtype}", dtype)) as checkpoint:
            assert jittered(checkpoint, seed=0).files.read(name).abs().max() == 0
    assert value.abs().max() > 0


def opened(name: str, tmp_path: Path, dtype: torch.dtype) -> Checkpoint:
    if name.startswith("zoo"):
        return Checkpoint(made.zoo_net(tmp_path / "a.safetensors", name.partition("-")[2]))
    family, _, activation = name.partition("-")
    options = {"activation_function": activation} if activation else {}
    return Checkpoint(made.save(made.model(family, **options), tmp_path, dtype))


@pytest.mark.parametrize("name", [*made.FAMILIES, "gpt2-relu", "zoo-paper", "zoo-residual"])
def test_what_rounding_does_to_each_unit_is_what_is_expected(name: str, tmp_path: Path) -> None:
    """The mean square over many roundings, against the formula."""
    draws = 40
    with opened(name, tmp_path, torch.bfloat16) as checkpoint:
        block = canonical_block(checkpoint, 1)
        expected = expected_squares(block, block_variances(checkpoint, 1))
        seen = [
            squared_distances(canonical_block(jittered(checkpoint, seed=i), 1), block)
            for i in range(draws)
        ]
    for kind, mean in expected.items():
        found = torch.stack([squares[kind] for squares in seen]).mean(dim=0)
        both = mean > 0
        assert torch.equal(both, found > 0), kind
        # Under LayerNorm a 24th of it goes with the mean.
        ratio = (found[both] / mean[both]).mean()
        assert not both.any() or 0.85 < ratio < 1.15, (kind, ratio)


def test_products_are_compared_without_being_made() -> None:
    seed = torch.Generator().manual_seed(0)
    P, R, dP, dR = (
        torch.randn(shape, generator=seed, dtype=torch.float64)
        for shape in ((2, 7, 4), (2, 5, 4)) * 2
    )
    ours = P + 1e-9 * dP, R + 1e-9 * dR
    plain = (ours[0] @ ours[1].mT - P @ R.mT).square().sum(dim=(1, 2))
    assert torch.allclose(product_squares(ours, (P, R)), plain, rtol=1e-5, atol=0)


def test_units_of_another_block_and_no_others(tmp_path: Path) -> None:
    with opened("llama", tmp_path, torch.float32) as checkpoint:
        one, two = (canonical_block(checkpoint, number) for number in (0, 1))
    heads, pairs = 6, 2
    taken = with_units_of(two, one, {"Q K": [pairs * 4], "gate": [3]})
    same = {kind: d == 0 for kind, d in squared_distances(taken, one).items()}
    assert same["gate"].tolist() == [i == 3 for i in range(40)]
    assert same["Q K"].flatten().view(heads, pairs).all(dim=1).tolist() == [
        i == 4 for i in range(6)
    ]
    kept = squared_distances(taken, two)
    assert kept["V O"].max() == 0
    assert (kept["gate"] == 0).sum() == 39


def test_what_rounding_is_not_known_of_explains_nothing() -> None:
    squares = torch.tensor([0.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    expected = torch.tensor([1.0, 1.0, torch.inf, torch.nan], dtype=torch.float64)
    worst, together = judged("A", squares, expected, 24)
    assert worst.beyond == (2, 3)
    assert not together.ratio <= 1
    fine, all_fine = judged("A", squares[:2], expected[:2], 24)
    assert (fine.value, fine.beyond) == (1.0, ())
    assert all_fine.value == pytest.approx(0.5**0.5)
