"""Compiled passes against those in torch, which are tested against plain nets."""

import os
import shutil
import stat
import subprocess

import pytest
import torch

from tests.zoo.small import images_task, make_run, text_task
from transformer_nfn.group import relative_error
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.recipe import Training
from transformer_nfn.zoo.training.compiled import Compiled, find_library, library
from transformer_nfn.zoo.training.engines import InTorch, make_engine
from transformer_nfn.zoo.training.masks import Masks
from transformer_nfn.zoo.training.trainer import GroupTrainer

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, library.COMPILERS)), reason="no C++ compiler on this machine"
)
#: Widths that fill registers of any size; all of them distinct where they can be.
WIDTHS = {"D": 64, "heads": 4, "D_A": 48, "hidden": 80}
SHAPES = {
    "mnist-small": NetShape(tokens=16, inputs=49),
    "49-tokens": NetShape(tokens=49, inputs=16, blocks=1),
    "words": NetShape(tokens=32, inputs=0, classes=4),
    "residual": NetShape(block="residual", tokens=16, inputs=49),
    "odd": NetShape(tokens=5, inputs=7, blocks=3, classes=3, **WIDTHS),
    "odd-residual": NetShape(block="residual", tokens=70, inputs=0, classes=17, **WIDTHS),
}
NETS, BATCH = 3, 13
CLOSE = {torch.float64: 1e-13, torch.float32: 1e-5}


def make_pass(shape: NetShape, dtype: torch.dtype, ragged: bool, dropout: bool):
    """Weights, and what a step reads."""
    seed = torch.Generator().manual_seed(7)
    weights = torch.randn(NETS, shape.size, generator=seed, dtype=torch.float64).mul(0.3).to(dtype)
    size = (NETS, BATCH, shape.tokens, shape.inputs or shape.D)
    inputs = torch.randn(size, generator=seed, dtype=torch.float64).to(dtype)
    labels = torch.randint(shape.classes, (NETS, BATCH), generator=seed)
    lengths = None
    if ragged:
        lengths = torch.randint(1, shape.tokens + 1, (NETS, BATCH), generator=seed)
    masks = None
    if dropout:
        rows = BATCH * shape.tokens
        masks = Masks(
            [0.1, 0.25, 0.0],
            [1, 2, 3],
            layers=2 * shape.blocks,
            rows=rows,
            width=shape.D,
            like=weights,
        )
        masks.draw()
    return weights, (inputs, labels, lengths, masks)


def compiled(shape: NetShape, weights: torch.Tensor) -> Compiled:
    found = find_library(shape, weights)
    assert found is not None
    return Compiled(shape, weights, found)


@needs_compiler
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize(("ragged", "dropout"), [(False, True), (True, False)])
@pytest.mark.parametrize("name", SHAPES)
def test_a_pass_is_that_of_torch(name, ragged, dropout, dtype):
    shape = SHAPES[name]
    weights, read = make_pass(shape, dtype, ragged, dropout)
    expected, found = (
        InTorch(shape, weights, BATCH).step(*read),
        compiled(shape, weights).step(*read),
    )
    for net in range(NETS):
        assert relative_error(found.gradient[net], expected.gradient[net]) <= CLOSE[dtype]
    assert relative_error(found.loss, expected.loss) <= CLOSE[dtype]
    assert torch.equal(found.right, expected.right)


@needs_compiler
def test_every_tensor_has_its_gradient():
    # One wrong bias is a small part of the whole gradient.
    shape = SHAPES["odd-residual"]
    weights, read = make_pass(shape, torch.float64, ragged=True, dropout=True)
    expected, found = (
        InTorch(shape, weights, BATCH).step(*read),
        compiled(shape, weights).step(*read),
    )
    seen = 0
    for offset, size in shape.trained.values():
        place = slice(offset, offset + torch.Size(size).numel())
        mine, theirs = found.gradient[:, place], expected.gradient[:, place]
        assert (mine - theirs).abs().max() <= 1e-13 * expected.gradient.abs().max()
        seen += bool((theirs.abs() > 1e-6 * expected.gradient.abs().max()).any())
    assert seen == len(shape.trained)


@needs_compiler
@pytest.mark.parametrize("name", SHAPES)
def test_all_nets_answer_the_same_inputs(name):
    shape = SHAPES[name]
    weights, (inputs, _, lengths, _) = make_pass(shape, torch.float64, ragged=True, dropout=False)
    read = (inputs[0], lengths[0])
    expected = InTorch(shape, weights, BATCH).logits(*read)
    assert relative_error(compiled(shape, weights).logits(*read), expected) <= 1e-13


@needs_compiler
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float32, 5.0), (torch.float64, 30.0)])
def test_large_scores(dtype, scale):
    # exp of these scores overflows unless the highest of a row is taken off.
    shape = SHAPES["mnist-small"]
    weights, read = make_pass(shape, torch.float64, ragged=True, dropout=False)
    expected = InTorch(shape, weights.mul_(scale), BATCH).step(*read)
    weights, inputs = weights.to(dtype), read[0].to(dtype)
    found = compiled(shape, weights).step(inputs, *read[1:])
    assert relative_error(found.loss, expected.loss) <= 1e-4


@needs_compiler
def test_weights_that_are_no_numbers_stay_with_their_net():
    shape = SHAPES["mnist-small"]
    weights, read = make_pass(shape, torch.float32, ragged=True, dropout=False)
    weights[1] = torch.nan
    found = compiled(shape, weights).step(*read)
    assert found.loss.isfinite().tolist() == [True, False, True]
    assert found.gradient[1].isnan().any()
    assert found.gradient[[0, 2]].isfinite().all()


def trained(shape, task, runs, training, monkeypatch, compile_it: bool):
    monkeypatch.setenv(library.OFF, str(int(compile_it)))
    library.load_library.cache_clear()
    group = GroupTrainer(shape, task, training, runs, dtype=torch.float64)
    assert isinstance(group.engine, Compiled) == compile_it
    return group.train()


@needs_compiler
@pytest.mark.parametrize("task", [images_task(), text_task(width=16)], ids=["images", "words"])
def test_a_group_ends_where_it_does_in_torch(task, monkeypatch):
    first = task.train.inputs
    inputs = 0 if task.patch is None else first.shape[2]
    widths = {"D": 16, "heads": 2, "D_A": 24, "hidden": 8}
    shape = NetShape(tokens=first.shape[1], inputs=inputs, classes=task.classes, **widths)
    training = Training(batch=8, epochs=3, checkpoints=(2,), warmup=1, schedule="step")
    runs = [make_run(seed, dropout=0.1 * seed) for seed in range(3)]
    kept = [trained(shape, task, runs, training, monkeypatch, on) for on in (True, False)]
    for ours, theirs in zip(*kept, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert relative_error(one.weights, other.weights) <= 1e-9
            assert one.tested == pytest.approx(other.tested)
            assert (one.epoch, one.train_accuracy) == (other.epoch, other.train_accuracy)


@needs_compiler
def test_neighbours_do_not_matter():
    shape = SHAPES["mnist-small"]
    weights, (inputs, labels, _, _) = make_pass(shape, torch.float32, ragged=False, dropout=False)
    together = compiled(shape, weights).step(inputs, labels, None, None)
    alone = compiled(shape, weights[1:2]).step(inputs[1:2], labels[1:2], None, None)
    assert torch.equal(alone.gradient[0], together.gradient[1])


@needs_compiler
def test_of_equal_answers_the_first_counts():
    shape = SHAPES["mnist-small"]
    _, read = make_pass(shape, torch.float32, ragged=False, dropout=False)
    nets = torch.zeros(NETS, shape.size)
    found = compiled(shape, nets).step(*read)
    assert torch.equal(found.right, (read[1] == 0).sum(dim=1))
    assert torch.equal(found.right, InTorch(shape, nets, BATCH).step(*read).right)


@needs_compiler
def test_numbers_below_the_usual_format_are_zero_inside_only():
    shape = SHAPES["mnist-small"]
    _, (inputs, labels, _, _) = make_pass(shape, torch.float32, ragged=False, dropout=False)
    nets = torch.zeros(NETS, shape.size)
    place = shape.trained["bias2"].offset
    nets[:, place] = -93.0  # e^-93 is such a number
    found = compiled(shape, nets).step(inputs, labels.clamp_min(1), None, None)
    assert (found.gradient[:, place] == 0).all()
    assert (torch.tensor([1e-30]) * 1e-10).item() > 0


@needs_compiler
def test_nothing_beyond_the_buffers_is_read():
    shape = SHAPES["words"]
    weights, (inputs, labels, lengths, _) = make_pass(shape, torch.float32, True, False)
    engine = compiled(shape, weights)
    for wrong in (-1, shape.classes):
        with pytest.raises(ValueError, match="a label is not one of 0 to 3"):
            engine.step(inputs, labels.clone().fill_(wrong), lengths, None)
    for wrong in (0, shape.tokens + 1):
        with pytest.raises(ValueError, match="a length is not one of 1 to 32"):
            engine.step(inputs, labels, lengths.clone().fill_(wrong), None)
        with pytest.raises(ValueError, match="a length is not one of 1 to 32"):
            engine.logits(inputs[0], lengths[0].clone().fill_(wrong))
    huge = NetShape(tokens=1025, inputs=2)
    assert find_library(huge, torch.zeros(1, huge.size)) is None


@pytest.mark.parametrize("width", ["D", "D_A", "hidden"])
def test_widths_that_fill_no_register_are_for_torch(width):
    sizes = {"D": 16, "heads": 1, "D_A": 16, "hidden": 16}
    shape = NetShape(tokens=3, inputs=2, **{**sizes, width: 18})
    assert isinstance(make_engine(shape, torch.zeros(1, shape.size), 4), InTorch)
    heads = NetShape(tokens=3, inputs=2, **{**sizes, "heads": 8})  # each 2 wide
    assert isinstance(make_engine(heads, torch.zeros(1, heads.size), 4), InTorch)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """An empty cache of compiled code, and nothing loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.load_library.cache_clear()
    yield tmp_path / "transformer-nfn"
    library.load_library.cache_clear()


@needs_compiler
def test_it_is_compiled_once(fresh, monkeypatch):
    assert library.load_library(torch.float32) is not None
    (made,) = fresh.glob("*.so")
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    library.load_library.cache_clear()
    called, run = [], subprocess.run
    monkeypatch.setattr(
        library.subprocess, "run", lambda *a, **k: (called.append(a[0]), run(*a, **k))[1]
    )
    assert library.load_library(torch.float32) is not None
    assert [one for one in called if str(library.SOURCE) in one] == []
    assert [*fresh.iterdir()] == [made]


@pytest.mark.parametrize("how", ["off", "none", "fails", "absent"])
def test_without_a_compiler_nets_are_trained_in_torch(how, fresh, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    if how == "off":
        monkeypatch.setenv(library.OFF, "0")
    elif how == "none":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
    else:
        monkeypatch.setenv("CXX", str(broken) if how == "fails" else "no-such-compiler")
        monkeypatch.setattr(library, "COMPILERS", ())
    shape = SHAPES["mnist-small"]
    assert isinstance(make_engine(shape, torch.zeros(1, shape.size), 4), InTorch)


@needs_compiler
def test_nothing_is_loaded_that_others_may_have_written(fresh):
    assert library.load_library(torch.float32) is not None
    library.load_library.cache_clear()
    os.chmod(fresh, 0o777)
    assert library.load_library(torch.float32) is None
