"""Compiled passes against those in torch, which are tested against plain nets."""

import platform
import stat
import subprocess
import sys

import pytest
import torch

from tests.zoo.small import images_task, make_run, text_task
from transformer_nfn.group import relative_error
from transformer_nfn.space import ShapeError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.recipe import Training
from transformer_nfn.zoo.training.compiled import Compiled, find_library, library
from transformer_nfn.zoo.training.engines import InTorch, make_engine
from transformer_nfn.zoo.training.masks import Masks
from transformer_nfn.zoo.training.trainer import GroupTrainer


@pytest.fixture
def compiler():
    """Skip where nothing can be compiled; what a test loaded is forgotten after it."""
    if library.load_library(torch.float32) is None:
        pytest.skip("no C++ compiler on this machine that can compile the kernel")
    yield
    library.load_library.cache_clear()


needs_compiler = pytest.mark.usefixtures("compiler")
#: Widths that fill registers of any size; all of them distinct where they can be.
WIDTHS = {"D": 64, "heads": 4, "D_A": 48, "hidden": 80}
SHAPES = {
    "mnist-small": NetShape(tokens=16, inputs=49),
    "49-tokens": NetShape(tokens=49, inputs=16, blocks=1),
    "words": NetShape(tokens=32, inputs=0, classes=4),
    "residual": NetShape(block="residual", tokens=16, inputs=49),
    "odd": NetShape(tokens=5, inputs=7, blocks=3, classes=3, **WIDTHS),
    "wide-classifier": NetShape(tokens=3, inputs=5, D=16, heads=1, D_A=16, hidden=512),
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
    found = find_library(shape, weights.device, weights.dtype)
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
@pytest.mark.parametrize("name", ["mnist-small", "residual"])
def test_nan_stays_nan_and_with_its_net(name):
    # Scores that overflow, in one net: NaN must not become a number at a ReLU.
    shape = SHAPES[name]
    weights, read = make_pass(shape, torch.float32, ragged=True, dropout=False)
    offset, size = shape.trained["QKV0"]
    weights[1, offset : offset + torch.Size(size).numel()] *= 1e20
    expected, engine = InTorch(shape, weights, BATCH).step(*read), compiled(shape, weights)
    found = engine.step(*read)
    for one in (expected, found):
        assert one.loss.isfinite().tolist() == [True, False, True]
        assert one.gradient[1].isnan().any()
        assert one.gradient[[0, 2]].isfinite().all()
    assert engine.logits(read[0][1], read[2][1])[1].isnan().all()


def trained(shape, task, runs, training, monkeypatch, compile_it: bool):
    monkeypatch.setenv(library.SWITCH, str(int(compile_it)))
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
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only an x86 flushes")
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
    weights, read = make_pass(shape, torch.float32, ragged=True, dropout=True)
    inputs, labels, lengths, masks = read
    engine = compiled(shape, weights)
    engine.step(*read)  # nothing is wrong with these
    fewer = Masks(
        [0.1] * NETS,
        [1] * NETS,
        layers=2 * shape.blocks,
        rows=shape.tokens,
        width=shape.D,
        like=weights,
    )
    for wrong in (
        (inputs[..., :16], labels, lengths, masks),
        (inputs[:, :, :3], labels, lengths, masks),
        (inputs[:, :5], labels, lengths, masks),
        (inputs[:1], labels, lengths, masks),
        (inputs.double(), labels, lengths, masks),
        (inputs, labels[:2], lengths, masks),
        (inputs, labels.int(), lengths, masks),
        (inputs, labels, lengths[:, :5], masks),
        (inputs, labels, lengths.int(), masks),
        (inputs, labels, lengths, fewer),
        (inputs, labels.clone().fill_(-1), lengths, masks),
        (inputs, labels.clone().fill_(shape.classes), lengths, masks),
        (inputs, labels, lengths.clone().fill_(0), masks),
        (inputs, labels, lengths.clone().fill_(shape.tokens + 1), masks),
    ):
        with pytest.raises(ShapeError):
            engine.step(*wrong)
    for wrong in ((inputs[0, :, :, :16], None), (inputs[0], lengths[1, :2])):
        with pytest.raises(ShapeError):
            engine.logits(*wrong)
    with pytest.raises(ShapeError):
        Compiled(shape, weights[:, :-1].contiguous(), engine._library)
    huge = NetShape(tokens=1025, inputs=2)
    assert find_library(huge, "cpu", torch.float32) is None


@needs_compiler
def test_a_task_of_another_width_is_refused():
    task = text_task(width=16)
    shape = NetShape(tokens=task.tokens, inputs=0, D=32, heads=2, D_A=16, hidden=16, classes=3)
    training = Training(batch=8, epochs=1, checkpoints=(), warmup=0, schedule="step")
    with pytest.raises(ShapeError, match="inputs are"):
        GroupTrainer(shape, task, training, [make_run(1)]).train()


@needs_compiler
def test_too_little_memory_is_an_error_of_python():
    # In a process of its own: the limit stays.
    script = """
import resource, torch
from transformer_nfn.space import ShapeError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.training.engines import make_engine
shape = NetShape(tokens=784, inputs=1, D=256, heads=16, D_A=16, blocks=20)
engine = make_engine(shape, torch.zeros(1, shape.size), 1)
inputs = torch.zeros(1, 784, 1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, -1))
try:
    engine.logits(inputs, None)
except MemoryError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "not enough memory for a pass of these nets\n", done.stderr


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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library.load_library.cache_clear()
    yield tmp_path / "cache" / "transformer-nfn" / "compiled"
    library.load_library.cache_clear()


def load_again():
    library.load_library.cache_clear()
    return library.load_library(torch.float32)


@needs_compiler
def test_it_is_compiled_once(fresh, monkeypatch):
    assert load_again() is not None
    (made,) = fresh.glob("*.so")
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    monkeypatch.setattr(library, "_compile", None)
    assert load_again() is not None
    assert [*fresh.iterdir()] == [made]


@needs_compiler
def test_a_file_that_was_cut_off_is_compiled_again(fresh, monkeypatch, tmp_path):
    load_again()
    (whole,) = fresh.glob("*.so")
    # In another folder: what is loaded from one path once stays loaded.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    cut_off = tmp_path / "other" / "transformer-nfn" / "compiled" / whole.name
    cut_off.parent.mkdir(mode=0o700, parents=True)
    cut_off.write_bytes(b"")
    assert load_again() is not None
    assert cut_off.stat().st_size == whole.stat().st_size


@pytest.mark.parametrize("how", ["off", "none", "absent"])
def test_without_a_compiler_nets_are_trained_in_torch(how, fresh, monkeypatch):
    if how == "off":
        monkeypatch.setenv(library.SWITCH, "0")
    elif how == "none":
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv("CXX", raising=False)
    else:
        monkeypatch.setenv("CXX", "no-such-compiler")
        monkeypatch.setattr(library, "COMPILERS", ())
    shape = SHAPES["mnist-small"]
    assert isinstance(make_engine(shape, torch.zeros(1, shape.size), 4), InTorch)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("fails", r"the C\+\+ compiler failed \(.*kernel.cpp: no such instruction"),
        ("quotation", "No closing quotation"),
        ("no home", "home"),
        ("a file", "exists|Not a directory"),
    ],
)
def test_what_keeps_it_from_being_compiled_is_said(how, why, fresh, monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho kernel.cpp: no such instruction >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    if how == "quotation":
        monkeypatch.setenv("CXX", 'g++ -DX="')
    elif how != "fails":
        monkeypatch.setattr(library, "_run", lambda command: b"")  # before the folder is looked for
    if how == "no home":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setattr(library.Path, "home", _no_home)
    elif how == "a file":
        monkeypatch.setenv("XDG_CACHE_HOME", str(broken))
    shape = SHAPES["mnist-small"]
    with pytest.warns(UserWarning, match=why):
        engine = make_engine(shape, torch.zeros(1, shape.size), 4)
    assert isinstance(engine, InTorch)


def _no_home():
    raise RuntimeError("Could not determine home directory.")


@needs_compiler
@pytest.mark.parametrize("which", ["folder", "file"])
def test_nothing_is_loaded_that_others_may_have_written(which, fresh):
    load_again()
    (made,) = fresh.glob("*.so")
    (fresh if which == "folder" else made).chmod(0o777)
    with pytest.warns(UserWarning, match="others may write to"):
        assert load_again() is None
