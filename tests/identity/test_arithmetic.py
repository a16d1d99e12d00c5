"""Files that are one function in float64, and not for whoever loads them in their own dtype."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.families import moved, relative
from benchmarks.material.families import ARCHITECTURES, as_one, inputs, load, make, outputs
from tests.identity.test_strangers import with_tensors
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import Answer, same
from transformer_nfn.identity.running.arithmetic import arithmetics, run_in
from transformer_nfn.identity.running.function import run_batches
from transformer_nfn.identity.running.inputs import draw_inputs

Changes = dict[str, Tensor]


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_weights_as_stored_have_the_function_of_canonical_ones(name: str, tmp_path: Path) -> None:
    folder = moved(make(name, tmp_path / "a"), tmp_path / "b", 1)
    with Checkpoint(folder) as checkpoint:
        batches = [draw_inputs(checkpoint, checkpoint, seed=0, count=2)]
        (wanted,) = run_batches(checkpoint, batches)
        (found,) = run_batches(checkpoint, batches, as_stored=True)
    assert found.keys() == wanted.keys()
    for head, out in found.items():
        assert relative(out, wanted[head]) < 1e-10


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gemma3_text", "vit", "t5"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_is_off_by_about_as_much_as_a_loader(
    name: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = make(name, tmp_path / "a", dtype=dtype)
    given = inputs(folder)
    wanted = outputs(load(folder), given)
    theirs = relative(outputs(load(folder, dtype), given).double(), wanted)
    with Checkpoint(folder) as checkpoint:
        assert arithmetics(checkpoint) == [dtype]
        (found,) = run_in(dtype, checkpoint, [as_one(given)])
    fitting = [out for out in found.values() if out.numel() == wanted.numel()]
    assert all(type(out) is Tensor and out.dtype is torch.float64 for out in fitting)
    ours = min(relative(out.reshape(wanted.shape), wanted) for out in fitting)
    assert 1 / 3 < ours / theirs < 3


def norm_that_overflows(tensors: Changes) -> Changes:
    """Its scale times 2¹²⁷, what reads it divided by as much."""
    power = 2.0**127
    readers = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    return {
        name: value * power if name.endswith("input_layernorm.weight") else value / power
        for name, value in tensors.items()
        if name.endswith(("input_layernorm.weight", *readers))
    }


def last_norm_that_overflows(tensors: Changes) -> Changes:
    """What the outputs read, far beyond float16."""
    sizes = {"model.norm.weight": 2.0**15, "lm_head.weight": 2.0**-15}
    return {name: tensors[name] * size for name, size in sizes.items()}


def neurons_that_overflow(tensors: Changes) -> Changes:
    """What a gated neuron's linear branch makes."""
    sizes = {"up_proj.weight": 2.0**126, "down_proj.weight": 2.0**-126}
    return {
        name: value * size
        for name, value in tensors.items()
        for end, size in sizes.items()
        if name.endswith(end)
    }


@pytest.mark.parametrize(
    ("dtype", "change"),
    [
        (torch.float32, norm_that_overflows),
        (torch.bfloat16, norm_that_overflows),
        (torch.float16, last_norm_that_overflows),
        (torch.float32, neurons_that_overflow),
    ],
)
def test_numbers_on_the_way_that_the_dtype_cannot_hold_are_not_decided(
    dtype: torch.dtype, change: Callable[[Changes], Changes], tmp_path: Path
) -> None:
    folder = make("llama", tmp_path / "a", dtype=dtype, tie_word_embeddings=False)
    changed = change(load_file(folder / "model.safetensors"))
    assert all(value.isfinite().all() for value in changed.values())
    other = with_tensors(folder, tmp_path / "b", **changed)
    given = inputs(folder)
    assert outputs(load(folder, dtype), given).isfinite().all()
    assert not outputs(load(other, dtype), given).isfinite().all()
    with Checkpoint(folder) as ours, Checkpoint(other) as theirs:
        for one, two in ((ours, theirs), (theirs, ours)):
            verdict = same(one, two, seed=0, search=False)
            assert verdict.answer is Answer.UNDECIDED
            assert "beyond all that the stored dtype can hold" in verdict.reason


def test_a_file_of_two_dtypes_may_be_run_in_either(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "a", dtype=torch.float16, tie_word_embeddings=False)
    tensors = load_file(folder / "model.safetensors")
    name = "model.norm.weight"
    folder = with_tensors(folder, tmp_path / "mixed", **{name: tensors[name].float()})
    with Checkpoint(folder) as checkpoint:
        assert arithmetics(checkpoint) == [torch.float32, torch.float16]
        honest = moved(folder, tmp_path / "b", 1)
        with Checkpoint(honest) as other:
            assert same(checkpoint, other, seed=0).answer is Answer.EQUIVALENT
        large = last_norm_that_overflows(load_file(folder / "model.safetensors"))
        with Checkpoint(with_tensors(folder, tmp_path / "c", **large)) as other:
            verdict = same(checkpoint, other, seed=0, search=False)
    assert verdict.answer is Answer.UNDECIDED
    assert "beyond all that the stored dtype can hold" in verdict.reason
