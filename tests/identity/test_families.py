"""Every architecture that is read, as `transformers` makes and runs it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.material.families import (
    ARCHITECTURES,
    as_float32,
    exact,
    inputs,
    load,
    make,
    outputs,
)
from benchmarks.same.families import controls, function_error, moved, relative, spoiled
from transformer_nfn.checkpoints import FAMILIES, Checkpoint, rewrite
from transformer_nfn.identity import ElementError, apply_element, random_net_element, same
from transformer_nfn.kinship import distance, fingerprint

EVERY = sorted(ARCHITECTURES)


def test_every_model_type_is_among_them() -> None:
    tables = [keys for family in FAMILIES.values() for keys in family.keys.items()]
    assert set(EVERY) == {kind for kind, keys in tables if keys.classes}
    assert len(EVERY) >= 25


@pytest.mark.parametrize("name", EVERY)
def test_functions_symmetries_and_verdicts(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a")
    given = inputs(folder)
    before = outputs(exact(load(folder)), given)
    assert function_error(folder, given, before) < 1e-9
    other = moved(folder, tmp_path / "b", 1)
    assert relative(outputs(exact(load(other)), given), before) < 1e-10
    single = as_float32(folder, tmp_path / "single")
    orbit = moved(single, tmp_path / "orbit", 2)
    wrong = spoiled(orbit, tmp_path / "wrong", 0)
    with Checkpoint(single) as a, Checkpoint(orbit) as b, Checkpoint(wrong) as c:
        assert a.unknown_settings == {}
        assert same(a, b, seed=0).answer.value == "equivalent"
        assert not same(a, c, seed=0, search=False).answer.same_function
        assert distance(fingerprint(a), fingerprint(b)).largest < 1e-4
        assert distance(fingerprint(a), fingerprint(c)).largest > 1e-4


#: What is no symmetry: norms of queries and keys, partial rotary, ALiBi, norms after each half,
#: experts without their router.
@pytest.mark.parametrize(
    "name", ["qwen3", "gemma3_text", "gpt_neox", "cohere", "bloom", "mixtral", "olmo2"]
)
def test_what_looks_like_a_symmetry_and_is_none(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a")
    given = inputs(folder)
    before = outputs(exact(load(folder)), given)
    with Checkpoint(folder) as checkpoint:
        shown = dict(controls(checkpoint, tmp_path))
        assert shown
        for what, changed in shown.items():
            assert relative(outputs(exact(load(changed)), given), before) > 1e-3, what
            with Checkpoint(changed) as other:
                verdict = same(checkpoint, other, seed=0, search=False)
            assert not verdict.answer.same_function, what


def test_heads_that_look_alike_but_not_at_positions_are_not_one(tmp_path: Path) -> None:
    folder = make("bloom", tmp_path / "a")
    with Checkpoint(folder) as checkpoint:
        block = {name: tensor.clone() for name, tensor in checkpoint.block(0).tensors.items()}
        for name in "QK":
            block[name][:, :, :, 1] = block[name][:, :, :, 0]
        alike = checkpoint.block(0).replace(block)
        ours = rewrite(checkpoint, checkpoint.pack(0, alike).items(), tmp_path / "alike")
        swapped = {name: block[name][:, :, :, [1, 0, 2]] for name in "VO"}
        packed = checkpoint.pack(0, alike.replace(swapped)).items()
        theirs = rewrite(checkpoint, packed, tmp_path / "swapped")
    with Checkpoint(ours) as a, Checkpoint(theirs) as b:
        verdict = same(a, b, seed=0)
    assert not verdict.answer.same_function
    assert "no symmetry explains" in verdict.reason


def test_a_pair_of_signs_under_norms_of_queries_and_keys_is_found(tmp_path: Path) -> None:
    folder = make("qwen3", tmp_path / "a")
    with Checkpoint(folder) as a, Checkpoint(moved(folder, tmp_path / "b", 3, parts=["qk"])) as b:
        verdict = same(a, b, seed=0)
        assert verdict.answer.value == "equivalent"
        assert verdict.element is not None
        signs = verdict.element.blocks[0].parts["k"]
        assert set(signs.unique().tolist()) == {-1.0, 1.0}
        assert not torch.allclose(
            verdict.element.blocks[0].parts["i"].abs(), torch.ones(()).double()
        )


@pytest.mark.parametrize("name", ["gemma3_text", "llama", "gpt2"])
def test_a_coordinate_that_no_reader_sees(name: str, tmp_path: Path) -> None:
    """Gemma 3 270M has one: the scale of a norm is 1 - 1, and 0/0 is no ratio."""
    folder = make(name, tmp_path / "a", dtype=torch.float32)
    with Checkpoint(folder) as checkpoint:
        hidden = {}
        for norm in (*checkpoint.reading_norms(0), checkpoint.last_norm):
            hidden |= _without(checkpoint, norm, coordinate=5)
        rewrite(checkpoint, hidden.items(), tmp_path / "hidden")
    given = inputs(folder)
    before = outputs(load(tmp_path / "hidden"), given)
    other = moved(tmp_path / "hidden", tmp_path / "b", 1)
    assert relative(outputs(load(other), given), before) < 1e-4
    with Checkpoint(tmp_path / "hidden") as a, Checkpoint(other) as b:
        assert same(a, b, seed=0).answer.value == "equivalent"
        assert same(b, a, seed=0).answer.value == "equivalent"
        assert distance(fingerprint(a), fingerprint(b)).largest < 1e-4


def _without(checkpoint: Checkpoint, norm: str | None, coordinate: int) -> dict[str, torch.Tensor]:
    """A norm that gives nothing of one coordinate."""
    changed = {}
    for part, offset in (("weight", checkpoint.family.norm_offset), ("bias", 0.0)):
        if f"{norm}.{part}" in checkpoint.files:
            changed[f"{norm}.{part}"] = checkpoint.files.read(f"{norm}.{part}").clone()
            changed[f"{norm}.{part}"][coordinate] = -offset
    return changed


def test_what_routers_share_may_be_anything_that_leaves_the_rest(tmp_path: Path) -> None:
    """Certificates come from strangers: so much that rounding takes the columns is refused."""
    folder = make("mixtral", tmp_path / "a", dtype=torch.float32)
    with Checkpoint(folder) as ours:
        element = random_net_element(ours, torch.Generator().manual_seed(0), parts=["router"])
        assert apply_element(ours, element, tmp_path / "b").exists()
        with Checkpoint(tmp_path / "b") as theirs:
            found = same(ours, theirs, seed=0)
            assert found.answer.value == "equivalent"
            assert found.element is not None
            apply_element(ours, found.element, tmp_path / "c")
            with Checkpoint(tmp_path / "c") as again:
                for name in theirs.files:
                    error = theirs.files.read(name) - again.files.read(name)
                    assert error.norm() <= 1e-5 * theirs.files.read(name).norm(), name
        for size in (1e8, float("nan")):
            gauge = element.gauges[0]
            assert gauge is not None
            shared = {name: size * (1 + value.abs()) for name, value in gauge.shared.items()}
            wrong = replace(element, gauges=(replace(gauge, shared=shared), *element.gauges[1:]))
            with pytest.raises(ElementError):
                apply_element(ours, wrong, tmp_path / "d")


@pytest.mark.parametrize(
    "name", ["llama", "bert", "qwen3", "gemma3_text", "olmo2", "mixtral", "t5"]
)
def test_units_have_as_many_numbers_as_their_limits_take_for_granted(
    name: str, tmp_path: Path
) -> None:
    """The few of a norm of queries and keys were judged as D: a copy of Gemma 3 was not decided."""
    with Checkpoint(make(name, tmp_path / "a")) as checkpoint:
        spec, batch = checkpoint.spec, checkpoint.block(0)
    tensors = {tensor: value[0, 0, 0] for tensor, value in batch.tensors.items()}
    for kind, unit in spec.block.units.items():
        factors = unit.factors(tensors)
        counted = {label: spec.size(label) for label in unit.labels}
        units = torch.Size(counted.values()).numel()
        numbers = max(factor.numel() // units for factor in factors)
        assert numbers >= (1 if unit.single else spec.sizes["D"]), kind
