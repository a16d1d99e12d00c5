"""Usual mistakes are named, and nothing else is."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.material import breakages
from benchmarks.material.breakages import Break, Model, another_shard
from benchmarks.material.families import make
from benchmarks.material.gguf_files import source
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import (
    Cause,
    apply_element,
    find_cause,
    moved_tensors,
    random_net_element,
)
from transformer_nfn.testing import assert_same_function

Folder = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            home = tmp_path_factory.mktemp(kind) / "net"
            if kind == "gpt2":
                made[kind] = make(kind, home, dtype=torch.float32)
            else:
                made[kind] = source(kind, home, tie_word_embeddings=True)
        return made[kind]

    return get


def broken(folder: Path, how: Break, out: Path) -> Path:
    model = Model.read(folder)
    how(model, torch.Generator().manual_seed(0))
    return model.write(out)


def cause_of(one: Path, two: Path) -> Cause | None:
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        return find_cause(ours, theirs)


def turned(end: str) -> Break:
    def change(model: Model, _: torch.Generator) -> None:
        for name, tensor in model.tensors.items():
            if name.endswith(end):
                model.tensors[name] = tensor.T.reshape(tensor.shape).contiguous()

    return change


#: What `benchmarks/same/gate.py --quick` does not have: it makes all of them with Gemma 3.
CASES = [
    ("gemma3_text", breakages.folded_without_one, "norm offset", "and MLP are off by -1"),
    ("gpt2", breakages.tied_head, "tied head", "untie the head"),
    ("llama", breakages.stored_with_one, "norm offset", "all norms are off by +1"),
    ("llama", breakages.permuted_back, "rotary pairs", "queries were moved from neighbours"),
    ("qwen2", breakages.permuted_by_query_heads, "rotary pairs", "by the number of query heads"),
    ("gpt2", turned("mlp.c_fc.weight"), "transposed matrix", "mlp.c_fc.weight of every block"),
    ("llama", turned("gate_proj.weight"), "transposed matrix", "gate_proj.weight of every block"),
    ("gpt2", breakages.transposed_once, "transposed matrix", "h.1.attn.c_proj.weight is"),
    ("qwen2", breakages.heads_moved_but_output, "head order", "in Q, K and V, and O stayed"),
    ("llama", breakages.through_bfloat16, "dtype", "hold only numbers of bfloat16"),
]


@pytest.mark.parametrize(("kind", "how", "name", "says"), CASES)
def test_cause_is_named(
    kind: str, how: Break, name: str, says: str, folder: Folder, tmp_path: Path
) -> None:
    found = cause_of(folder(kind), broken(folder(kind), how, tmp_path / "bad"))
    assert found is not None
    assert found.name == name
    assert says in found.says
    assert "of 2 blocks" in found.evidence


@pytest.mark.parametrize(
    ("how", "name"),
    [(breakages.interleaved, "rotary pairs"), (breakages.through_bfloat16, "dtype")],
)
def test_cause_is_named_behind_a_symmetry(
    how: Break, name: str, folder: Folder, tmp_path: Path
) -> None:
    with Checkpoint(broken(folder("llama"), how, tmp_path / "bad")) as bad:
        element = random_net_element(bad, torch.Generator().manual_seed(1), condition=2.0)
        moved = apply_element(bad, element, tmp_path / "moved")
    found = cause_of(folder("llama"), moved)
    assert found is not None
    assert found.name == name


def test_first_may_be_the_broken_one(folder: Folder, tmp_path: Path) -> None:
    found = cause_of(
        broken(folder("gemma3_text"), breakages.tied_head, tmp_path / "bad"), folder("gemma3_text")
    )
    assert found is not None
    assert found.name == "tied head"
    assert "done to the second" in found.evidence


def test_shard_of_another_model(folder: Folder, tmp_path: Path) -> None:
    other = source("llama", tmp_path / "other", tie_word_embeddings=True, seed=1)
    found = cause_of(folder("llama"), another_shard(folder("llama"), other, tmp_path / "bad"))
    assert found is not None
    assert found.name == "shard"
    assert found.says.startswith("model-00002-of-00003.safetensors is of another model;")


@pytest.mark.parametrize("share", [1e-4, 0.5])
def test_other_changes_have_no_cause(share: float, folder: Folder, tmp_path: Path) -> None:
    def changed(model: Model, generator: torch.Generator) -> None:
        for name, tensor in model.tensors.items():
            noise = torch.randn(tensor.shape, generator=generator)
            model.tensors[name] = tensor + share * tensor.std() * noise

    assert cause_of(folder("llama"), broken(folder("llama"), changed, tmp_path / "bad")) is None


@pytest.mark.parametrize("rows", [slice(None), slice(-1, None)])
def test_a_rounded_fine_tune_is_no_dtype(
    rows: slice, folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_nfn.identity.causes.apart._ROWS", 8)

    def tuned(model: Model, generator: torch.Generator) -> None:
        for name, tensor in model.tensors.items():
            noise = torch.randn(tensor.shape, generator=generator)
            model.tensors[name] = tensor.clone()
            model.tensors[name][rows] += (0.001 * tensor.std() * noise)[rows]
        breakages.through_bfloat16(model, generator)

    assert cause_of(folder("llama"), broken(folder("llama"), tuned, tmp_path / "bad")) is None


def test_a_factor_is_no_offset(folder: Folder, tmp_path: Path) -> None:
    """Norms that are all 1, as of a new or folded model: 1 more is twice as much."""
    ones, other = Model.read(folder("llama")), Model.read(folder("llama"))
    for model in (ones, other):
        for name, tensor in model.tensors.items():
            if name.endswith("norm.weight"):
                model.tensors[name] = torch.ones_like(tensor)
    for name, tensor in other.tensors.items():
        if any(part in name for part in ("q_proj", "k_proj", "v_proj", "gate", "up_proj")):
            other.tensors[name] = 2 * tensor
    assert cause_of(ones.write(tmp_path / "ones"), other.write(tmp_path / "twice")) is None


def test_a_part_that_was_tuned_is_no_strange_shard(folder: Folder, tmp_path: Path) -> None:
    model = Model.read(folder("llama"))
    name = "model.layers.0.self_attn.v_proj.weight"
    model.tensors[name] = model.tensors[name] * 1.1
    assert (
        cause_of(folder("llama"), model.write(tmp_path / "bad", shards=len(model.tensors))) is None
    )


def test_two_mistakes_at_once_have_no_cause(folder: Folder, tmp_path: Path) -> None:
    def both(model: Model, generator: torch.Generator) -> None:
        breakages.interleaved(model, generator)
        breakages.transposed(model, generator)

    assert cause_of(folder("llama"), broken(folder("llama"), both, tmp_path / "bad")) is None


def test_what_is_equivalent_has_no_cause(folder: Folder, tmp_path: Path) -> None:
    """Else any mistake that changes nothing would explain it."""
    again = broken(folder("qwen2"), breakages.heads_moved, tmp_path / "again")
    assert cause_of(folder("qwen2"), again) is None


def test_other_settings_have_no_cause(folder: Folder, tmp_path: Path) -> None:
    model = Model.read(folder("llama"))
    model.config["rms_norm_eps"] = 0.1
    assert cause_of(folder("llama"), model.write(tmp_path / "bad")) is None


def test_moved_tensors(folder: Folder, tmp_path: Path) -> None:
    still = Model.read(folder("llama")).write(tmp_path / "still", shards=2)
    bfloat16 = Model.read(folder("llama"))
    bfloat16.tensors = {name: tensor.bfloat16() for name, tensor in bfloat16.tensors.items()}
    folded = Model.read(folder("llama"))
    breakages.fold(folded)
    cases = (
        (still, 0),
        (bfloat16.write(tmp_path / "bfloat16"), 0),
        # Two norms of each block, and what reads them: q, k, v, gate and up.
        (folded.write(tmp_path / "folded"), 14),
    )
    for other, count in cases:
        with Checkpoint(folder("llama")) as ours, Checkpoint(other) as theirs:
            assert len(moved_tensors(ours, theirs)) == count
    bare = Model.read(folder("llama"))
    bare.tensors = {name.removeprefix("model."): t for name, t in bare.tensors.items()}
    bare.tensors["lm_head.weight"] = bare.tensors["embed_tokens.weight"].clone()
    small = Model.read(folder("llama"))
    small.tensors = {name: 1e-6 * tensor for name, tensor in small.tensors.items()}
    half = Model.read(small.write(tmp_path / "small"))
    half.tensors = {name: tensor.half() for name, tensor in half.tensors.items()}
    for one, two in (
        (folder("llama"), bare.write(tmp_path / "bare")),
        (tmp_path / "small", half.write(tmp_path / "half")),  # below the least normal number
    ):
        with Checkpoint(one) as ours, Checkpoint(two) as theirs:
            assert moved_tensors(ours, theirs) == []
    with pytest.raises(AssertionError, match="nothing moved"):
        assert_same_function(folder("llama"), still, moved=True)
    assert_same_function(folder("llama"), tmp_path / "folded", moved=True)


def test_assertion_names_the_cause(folder: Folder, tmp_path: Path) -> None:
    bad = broken(folder("gemma3_text"), breakages.folded_without_one, tmp_path / "bad")
    with pytest.raises(AssertionError, match="the cause is norm offset: the scales of the norms"):
        assert_same_function(folder("gemma3_text"), bad)
