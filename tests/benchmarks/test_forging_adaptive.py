from pathlib import Path

import pytest
import torch

from transformer_nfn.identity import run

pytest.importorskip("benchmarks.same.forging.forge", reason="no benchmarks in an sdist")
if True:  # after the line above, which skips all of it
    from benchmarks.same.forging import adaptive
    from benchmarks.same.forging.bases import Bases, rng
    from benchmarks.same.forging.budget import (
        BUDGETS,
        passes,
        products,
        relative,
        rounding,
        roundings,
    )
    from benchmarks.same.forging.draft import Draft
    from benchmarks.same.forging.measure import draw


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"), inputs=40)


def drafted(bases: Bases, family: str, dtype: torch.dtype) -> Draft:
    draft = Draft(bases.exact(family, str(dtype).removeprefix("torch."), "plain", 0))
    draft.dtype = dtype
    return draft


def random_change(draft: Draft) -> dict[str, torch.Tensor]:
    generator = rng("change")
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in draft.values.items()
        if value.is_floating_point()
    }


def test_roundings_are_those_of_the_dtype() -> None:
    exact = torch.randn(100_000, generator=rng("rounding"), dtype=torch.float64)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        stored = exact.to(dtype).double()
        seen = (stored - exact).square().mean().sqrt()
        assert rounding(stored, dtype).square().mean().sqrt().item() == pytest.approx(
            seen.item(), rel=0.02
        )
    assert rounding(torch.zeros(3, dtype=torch.float64), torch.bfloat16).tolist() == [0, 0, 0]


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "zoo-residual"])
def test_every_unit_is_as_far_as_allowed(family: str, bases: Bases) -> None:
    draft = drafted(bases, family, torch.bfloat16)
    delta = roundings(draft)(random_change(draft))
    for number in range(draft.blocks):
        block = draft.block(number)
        other = draft.copy()
        other.add(delta)
        moved = other.block(number)
        name = "Q"
        axes = (-2, -1)  # what a head has
        off = (moved[name] - block[name]).square().sum(dim=axes).sqrt()
        expected = rounding(block[name], torch.bfloat16).square().sum(dim=axes).sqrt()
        torch.testing.assert_close(off, expected)


def test_relative_budgets_are_in_roundoffs(bases: Bases) -> None:
    draft = drafted(bases, "llama", torch.float32)
    delta = relative(draft)(random_change(draft))
    name = "model.embed_tokens.weight"
    share = delta[name].norm(dim=1) / draft.values[name].norm(dim=1)
    torch.testing.assert_close(share, torch.full_like(share, 2.0**-24))


def test_products_move_as_rounding_moves_them(bases: Bases) -> None:
    draft = drafted(bases, "gpt2", torch.bfloat16)
    other = draft.copy()
    other.add(products(draft)(random_change(draft)))
    before, after = draft.block(0), other.block(0)
    forms = [torch.einsum("hzk,hwk->hzw", block["Q"], block["K"]) for block in (before, after)]
    generator, squares = rng("jitter"), []
    for _ in range(8):
        noisy = {
            name: before[name]
            + rounding(before[name], torch.bfloat16)
            * torch.randn(before[name].shape, generator=generator, dtype=torch.float64)
            for name in ("Q", "K")
        }
        form = torch.einsum("hzk,hwk->hzw", noisy["Q"], noisy["K"])
        squares.append((form - forms[0]).square().sum(dim=(1, 2)))
    expected = torch.stack(squares).mean(dim=0).sqrt()
    torch.testing.assert_close((forms[1] - forms[0]).norm(dim=(1, 2)), expected, rtol=0.1, atol=0)


@pytest.mark.parametrize("disguise", ["none", "spread", "digits"])
def test_gradients_find_more_than_chance(disguise: str, bases: Bases) -> None:
    draft = drafted(bases, "llama", torch.bfloat16)
    budget = BUDGETS["roundings"](draft)
    found = adaptive.change(draft, budget, rng("attack"), disguise)
    inputs = draw(draft.checkpoint, 8, 24, 99)  # not those that he has
    plain = run(draft.view(), inputs)["lm_head"]
    far = []
    for delta in (found, budget(random_change(draft))):
        other = draft.copy()
        other.add(delta)
        far.append((run(other.view(), inputs)["lm_head"] - plain).norm().item())
    assert far[0] > 2 * far[1]


def test_a_spread_change_has_no_direction(bases: Bases) -> None:
    draft = drafted(bases, "llama", torch.bfloat16)
    name = "model.layers.0.mlp.up_proj.weight"
    rank_one = {name: torch.outer(torch.arange(40.0), torch.ones(24)).double()}
    rank_one[name] += 0.01 * random_change(draft)[name]
    spread = adaptive.disguised(draft, rank_one, "spread")[name]
    before, after = (torch.linalg.svdvals(value) for value in (rank_one[name], spread))
    assert before[0] > 20 * before[1]
    assert after[0] < 1.5 * after[1]
    assert abs((spread * draft.values[name]).sum()) < 1e-9


def test_the_largest_change_that_passes_is_stored(bases: Bases, tmp_path: Path) -> None:
    draft = drafted(bases, "llama", torch.float32)
    ours = bases.stored("llama", "float32", "plain", 0)
    delta = roundings(draft)(random_change(draft))
    theirs, scale = adaptive.largest(draft, delta, ours, tmp_path, None)
    assert passes(ours, theirs)
    more = draft.copy()
    more.add(delta, 1.2 * scale)
    assert not passes(ours, more.store(tmp_path / "more", torch.float32))
