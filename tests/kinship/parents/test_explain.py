"""Merges, stacks, copies of known recipe: what is said of them."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.checkpoints import made
from tests.cli.run import tnfn
from transformer_nfn.checkpoints import TensorFiles
from transformer_nfn.kinship import Explanation, Origin, explain
from transformer_nfn.kinship.parents.blocks import Place

Tensors = dict[str, Tensor]
SIZES = {"n_embd": 32, "n_inner": 96, "n_layer": 4, "n_head": 4, "vocab_size": 90}


@pytest.fixture(scope="module")
def base() -> Tensors:
    return {
        name: value.detach().clone()
        for name, value in made.model("gpt2", **SIZES).state_dict().items()
        if name != "lm_head.weight"
    }


def tuned(tensors: Tensors, size: float, seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value
        + size * value.std().nan_to_num(0) * torch.randn(value.shape, generator=generator)
        for name, value in tensors.items()
    }


def explained(
    home: Path, child: Tensors, *parents: Tensors, dtype: torch.dtype = torch.float32
) -> Explanation:
    names = [chr(ord("A") + number) for number in range(len(parents))]
    for name, tensors in (("child", child), *zip(names, parents, strict=True)):
        stored = {key: value.to(dtype).contiguous() for key, value in tensors.items()}
        save_file(stored, home / f"{name}.safetensors")
    opened = [TensorFiles(home / f"{name}.safetensors") for name in ("child", *names)]
    try:
        return explain(opened[0], opened[1:], names)
    finally:
        for one in opened:
            one.close()


def of(found: Explanation, origin: Origin) -> list[str]:
    return [one.name for one in found.tensors if one.origin is origin]


def merged(make: Callable[..., Tensor], *parents: Tensors) -> Tensors:
    return {name: make(*(parent[name] for parent in parents)) for name in parents[0]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [0.05, 0.3])
def test_a_linear_merge(base: Tensors, size: float, dtype: torch.dtype, tmp_path: Path) -> None:
    one, two = tuned(base, size, 1), tuned(base, size, 2)
    child = merged(lambda a, b: 0.7 * a + 0.3 * b, one, two)
    found = explained(tmp_path, child, one, two, dtype=dtype)
    matrices = [t for t in found.tensors if base[t.name].dim() > 1]
    for tensor in matrices:
        assert tensor.origin is Origin.MERGED, tensor
        coefficients = [share.coefficient for share in tensor.shares]
        assert coefficients == pytest.approx([0.7, 0.3], abs=0.02)


def test_a_task_vector_is_a_sum_with_its_base(base: Tensors, tmp_path: Path) -> None:
    one, two = tuned(base, 0.1, 1), tuned(base, 0.1, 2)
    child = merged(lambda o, a, b: o + 0.8 * (a - o) + 0.6 * (b - o), base, one, two)
    found = explained(tmp_path, child, base, one, two)
    assert "-0.400 A + 0.800 B + 0.600 C" in found.summary


def test_a_spherical_merge(base: Tensors, tmp_path: Path) -> None:
    one, two = tuned(base, 0.8, 1), tuned(base, 0.8, 2)

    def turned(a: Tensor, b: Tensor) -> Tensor:
        angle = math.acos((a * b).sum().item() / (a.norm() * b.norm()).item())
        return (math.sin(0.65 * angle) * a + math.sin(0.35 * angle) * b) / math.sin(angle)

    matrices = {name: value for name, value in one.items() if value.dim() > 1}
    found = explained(tmp_path, merged(turned, matrices, two), matrices, two)
    assert "spherically between A and B, at 0.350" in found.summary


def test_stacked_blocks(base: Tensors, tmp_path: Path) -> None:
    other = {
        name: value.detach().clone()
        for name, value in made.model("gpt2", 1, **SIZES).state_dict().items()
        if name != "lm_head.weight"
    }
    order = [(base, 0), (base, 1), (other, 1), (other, 3), (base, 3)]
    child = {name: value for name, value in base.items() if ".h." not in name}
    for number, (source, block) in enumerate(order):
        for name, value in source.items():
            if Place.of(name).block == block:
                child[Place.of(name).at(number).name] = value.clone()
    found = explained(tmp_path, child, base, other)
    assert found.blocks == ({0: 0, 1: 1, 4: 3}, {2: 1, 3: 3})
    assert of(found, Origin.COPIED) == [one.name for one in found.tensors]
    assert "its blocks 0, 1, 4 are blocks 0, 1, 3 of A" in found.summary


def test_what_was_trained_further_and_what_is_new(base: Tensors, tmp_path: Path) -> None:
    child = {**base, "score.weight": torch.randn(3, 32)}
    changed = [name for name in base if ".h.2.mlp" in name and base[name].dim() > 1]
    child |= {name: value for name, value in tuned(base, 0.2, 3).items() if name in changed}
    found = explained(tmp_path, child, base)
    assert sorted(of(found, Origin.CHANGED)) == sorted(changed)
    assert of(found, Origin.NEW) == ["score.weight"]
    assert all(
        one.left == pytest.approx(0.2, abs=0.02)
        for one in found.tensors
        if one.origin is Origin.CHANGED
    )


def test_zeros_that_both_have_are_copied(base: Tensors, tmp_path: Path) -> None:
    parent = {**base, "zeros": torch.zeros(5)}
    found = explained(tmp_path, {**tuned(base, 0.1, 1), "zeros": torch.zeros(5)}, parent)
    assert of(found, Origin.COPIED) == ["zeros"]


def test_a_stranger_is_no_parent(base: Tensors, tmp_path: Path) -> None:
    stranger = {
        name: value.detach().clone()
        for name, value in made.model("gpt2", 7, **SIZES).state_dict().items()
        if name != "lm_head.weight"
    }
    found = explained(tmp_path, tuned(base, 0.1, 1), stranger, base)
    assert found.blocks[0] == {}
    for one in found.tensors:
        if base[one.name].dim() > 1:
            assert [share.parent for share in one.shares][-1] == 1
            assert all(abs(s.coefficient) < 0.1 for s in one.shares if s.parent == 0)


def test_the_command(base: Tensors, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = tuned(base, 0.1, 1), tuned(base, 0.1, 2)
    child = merged(lambda a, b: 0.5 * a + 0.5 * b, one, two)
    explained(tmp_path, child, one, two)  # writes the files
    files = [str(tmp_path / f"{name}.safetensors") for name in ("child", "A", "B")]
    ended = tnfn(capsys, "explain", files[0], "--from", files[1], "--from", files[2])
    assert ended.code == 0
    assert "0.500 A.safetensors + 0.500 B.safetensors" in ended.out
    given = json.loads(
        tnfn(capsys, "explain", files[0], "--from", files[1], "--from", files[2], "--json").out
    )
    assert {one["origin"] for one in given["tensors"]} == {"merged"}
    assert tnfn(capsys, "explain", files[0], "--from", str(tmp_path / "none")).code == 1
