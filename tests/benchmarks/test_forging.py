from pathlib import Path

import pytest
import torch

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import confirm, run
from transformer_nfn.identity.running import confirmation

pytest.importorskip("benchmarks.same.forging.forge", reason="no benchmarks in an sdist")
if True:  # after the line above, which skips all of it
    from benchmarks.same.forging.bases import FAMILIES, STYLES, Bases
    from benchmarks.same.forging.contest import all_kinds, judged, measured, summary
    from benchmarks.same.forging.draft import Draft, differentiable_run
    from benchmarks.same.forging.forge import forged
    from benchmarks.same.forging.honest import HONEST, honest
    from benchmarks.same.forging.measure import LINE, Apart, draw
    from benchmarks.same.forging.pairs import Case, Pair
    from benchmarks.same.forging.roles import UnfitError, duals, move, numbered

#: Those that have most parts first.
_ORDER = ("gpt2-relu", "qwen2", "llama", "bert", "gpt2", "mixtral")

# transformers warns of configs that we forge on purpose.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    return Bases(tmp_path_factory.mktemp("bases"), inputs=40)


#: What the adaptive attacker reaches depends on what the comparison tolerates: nothing, ideally.
#: And most keys of a config are harmless.
_MAY_FAIL = ("adaptive", "setting: any key")


@pytest.mark.parametrize("kind", [k for k in all_kinds() if k not in (*HONEST, *_MAY_FAIL)])
def test_a_forgery_is_above_the_line(kind: str, bases: Bases, tmp_path: Path) -> None:
    seen: list[Apart | None] = []
    for seed, family in enumerate(_ORDER * 2):
        case = Case(kind, family, "float32", seed)
        try:
            pair = forged(bases, case, tmp_path / str(seed))
        except UnfitError:
            continue
        seen.append(measured(bases, pair, careful=False))
        if pair.declared or (seen[-1] is not None and seen[-1].forged):
            return
    pytest.fail(f"no forgery among {seen}")


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_copy_is_below_the_line(kind: str, bases: Bases, tmp_path: Path) -> None:
    pair = honest(bases, Case(kind, "llama", "bfloat16", 0), tmp_path / "work")
    pair.measured = True
    found = measured(bases, pair, careful=True)
    assert found is not None
    assert pair.honest
    assert not found.forged


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_settings_of_experts_are_measured_not_declared(
    family: str, bases: Bases, tmp_path: Path
) -> None:
    pair = forged(bases, Case("setting: theta", family, "float32", 0), tmp_path / "work")
    assert pair.declared is None
    assert pair.apart is not None


def test_rare_roundings_are_not_taken_for_a_difference(
    bases: Bases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = honest(bases, Case("honest: orbit", "dinov2", "float32", 0), tmp_path / "work")
    with Checkpoint(pair.ours) as ours, Checkpoint(pair.theirs) as theirs:
        assert confirm(ours, theirs, seed=1007).holds
        monkeypatch.setattr(confirmation, "_MOST_JITTERS", 11)
        few = confirm(ours, theirs, seed=1007)
    assert few.in_doubt


def test_a_case_is_made_again_to_the_bit(bases: Bases, tmp_path: Path) -> None:
    case = Case("low rank in all", "bert", "bfloat16", 5)
    one, two = (
        Draft(forged(bases, case, tmp_path / name).theirs).values for name in ("one", "two")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert Case.parse(case.key) == case


@pytest.mark.parametrize("family", FAMILIES)
def test_moving_a_unit_is_a_symmetry_and_half_of_it_is_none(family: str, bases: Bases) -> None:
    draft = Draft(bases.full(family, "plain", 0))
    inputs = draw(draft.checkpoint, 4, 9, 0)
    plain = run(draft.view(), inputs)
    for dual in duals(draft):
        other, block = draft.copy(), draft.block(1)
        eye = torch.eye(draft.spec.size(dual.label), dtype=torch.float64)
        for number, unit in enumerate(numbered(draft, dual)):
            move(other, block, dual, unit, 2.0 ** (1 + number % 5) * eye)
        half = dict(block) | {name: draft.block(1)[name] for name in dual.right}
        other.put(1, block)
        for head, out in run(other.view(), inputs).items():
            torch.testing.assert_close(out, plain[head], rtol=1e-9, atol=1e-9)
        other.put(1, half)
        wrong = run(other.view(), inputs)
        assert any(not torch.allclose(wrong[head], plain[head], rtol=1e-6) for head in plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_every_family(family: str, bases: Bases) -> None:
    draft = Draft(bases.full(family, "plain", 0))
    draft.values = {
        n: v.requires_grad_() if v.is_floating_point() else v for n, v in draft.values.items()
    }
    inputs = draw(draft.checkpoint, 2, 9, 0)
    sum(out.square().sum() for out in differentiable_run(draft.view(), inputs).values()).backward()
    name = draft.checkpoint.block_name(0) + draft.checkpoint.family.matrices[0].weight
    assert draft.values[name].grad.abs().sum() > 0


@pytest.mark.parametrize("style", STYLES)
def test_styles_are_sound_networks(style: str, bases: Bases) -> None:
    draft = Draft(bases.stored("llama", "float16", style, 0))
    out = run(draft.view(), draw(draft.checkpoint, 2, 9, 0))
    assert all(torch.isfinite(value).all() and value.std() > 0 for value in out.values())


def test_dithering_keeps_what_rounding_to_nearest_loses(bases: Bases) -> None:
    draft = Draft(bases.exact("llama", "bfloat16", "plain", 0))
    name = "model.layers.0.mlp.up_proj.weight"
    draft.values[name] = torch.full_like(draft.values[name], 1.0 + 2.0**-10)  # an eighth of a digit
    near = draft.rounded(torch.bfloat16)[name].double()
    mixed = draft.rounded(torch.bfloat16, torch.Generator().manual_seed(0))[name].double()
    assert (near == 1).all()
    assert mixed.mean().item() == pytest.approx(1 + 2.0**-10, abs=2.0**-11)


def test_what_counts_as_wrong() -> None:
    here = Path(".")
    above, below = Apart(LINE + 1, 0, 0), Apart(1, LINE - 1, 0)
    forgery, copy = Pair(here, here), Pair(here, here, honest=True)
    declared = Pair(here, here, declared="why")
    assert judged(forgery, above, "equivalent")["wrong"]
    assert not judged(forgery, above, "not decided")["wrong"]
    assert judged(forgery, above, "crash")["wrong"]
    assert judged(forgery, below, "equivalent") == {"status": "too small", "wrong": False}
    assert judged(copy, None, "different")["wrong"]
    assert judged(copy, None, "refused")["wrong"]
    assert not judged(copy, None, "not decided")["wrong"]
    assert judged(declared, None, "same tensors")["wrong"]
    assert not judged(declared, None, "refused")["wrong"]


def test_the_contest_is_lost_by_one_forgery_or_too_many_undecided() -> None:
    def result(status: str, answer: str, wrong: bool, kind: str = "noise") -> dict[str, object]:
        return {
            "case": "", "kind": kind, "family": "", "dtype": "", "status": status, "answer": answer,
            "wrong": wrong, "over_all": 5.0,
        }  # fmt: skip

    fine = [result("forgery", "different", False), result("honest", "equivalent", False)]
    wanted = {"forgeries": 1, "adaptive": 0, "honest": 1}
    assert summary(fine, wanted)["ok"]
    assert not summary([*fine, result("forgery", "equivalent", True)], wanted)["ok"]
    assert not summary([*fine, result("honest", "not decided", False)], wanted)["ok"]
    assert not summary(fine, {**wanted, "forgeries": 2})["ok"]
