"""What nets answer is the same wherever it is computed, and so is the gradient of what is asked."""

import pytest
import torch

from tests.zoo.test_compiled import SHAPES, compiler, needs_compiler
from transformer_nfn.group import relative_error
from transformer_nfn.space import ShapeError, apply_net
from transformer_nfn.zoo.asking import ask
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.tensors import TensorShape
from transformer_nfn.zoo.training.compiled import Compiled, find_library

__all__ = ["compiler"]
NETS, ASKED = 3, 11


def drawn(shape: NetShape, dtype: torch.dtype = torch.float64, tokens: int | None = None):
    """Rows of files, and sequences."""
    seed = torch.Generator().manual_seed(3)
    rows = torch.randn(NETS, shape.size, generator=seed, dtype=torch.float64).mul(0.3)
    size = (ASKED, tokens or shape.tokens, shape.inputs or shape.D)
    inputs = torch.randn(size, generator=seed, dtype=torch.float64)
    return rows.to(dtype), inputs.to(dtype).requires_grad_()


def in_torch(shape: NetShape, rows: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return apply_net(shape.net_batch(rows), inputs)


def with_gradient(answers: torch.Tensor, inputs: torch.Tensor):
    # Of a function in which every answer of every net has a weight of its own.
    weights = torch.linspace(-1, 2, answers.numel(), dtype=answers.dtype).view_as(answers)
    return answers.detach(), torch.autograd.grad((answers.sin() * weights).sum(), inputs)[0]


@needs_compiler
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
@pytest.mark.parametrize("name", SHAPES)
def test_answers_and_gradients_are_those_of_torch(name, dtype, close, monkeypatch):
    shape = SHAPES[name]
    rows, inputs = drawn(shape, dtype)
    expected = with_gradient(in_torch(shape, rows, inputs), inputs)
    refuse_torch(monkeypatch)
    found = with_gradient(ask(shape, rows, inputs), inputs)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        for one, other in zip(mine, theirs, strict=True):
            assert relative_error(one, other) <= close


def refuse_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the compiled kernel fits these nets")

    monkeypatch.setattr("transformer_nfn.zoo.asking.apply_net", refused)


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        (NetShape(tokens=16, inputs=49, D=6, heads=1, D_A=5, hidden=3), None),  # no whole registers
        (SHAPES["mnist-small"], 9),  # nets trained on 16 tokens take 9 as well
    ],
)
def test_what_the_kernel_does_not_take_is_answered_by_torch(shape, tokens):
    rows, inputs = drawn(shape, tokens=tokens)
    expected = with_gradient(in_torch(shape, rows, inputs), inputs)
    for mine, theirs in zip(with_gradient(ask(shape, rows, inputs), inputs), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_without_a_compiler_torch_answers(monkeypatch):
    monkeypatch.setattr("transformer_nfn.zoo.asking.find_library", lambda *_: None)
    shape = SHAPES["mnist-small"]
    rows, inputs = drawn(shape)
    assert torch.equal(ask(shape, rows, inputs), in_torch(shape, rows, inputs))


def test_weights_have_their_gradient_where_it_is_wanted():
    shape = SHAPES["mnist-small"]
    rows, inputs = drawn(shape)
    rows.requires_grad_()
    expected, found = (
        torch.autograd.grad(answer(shape, rows, inputs).sin().sum(), [rows, inputs])
        for answer in (in_torch, ask)
    )
    assert found[0].abs().max() > 0
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)


@needs_compiler
def test_without_gradients_compiled_code_asks_weights_that_could_have_one(monkeypatch):
    refuse_torch(monkeypatch)
    rows, inputs = drawn(SHAPES["mnist-small"])
    with torch.no_grad():
        assert not ask(SHAPES["mnist-small"], rows.requires_grad_(), inputs).requires_grad


def test_shapes_that_were_asked_are_still_compared():
    # Two that are equal and not one. A tensor in either would be compared, and sent to workers.
    one, other = (SHAPES["mnist-small"].model_copy() for _ in range(2))
    for shape in (one, other):
        ask(shape, *drawn(shape))
    assert one == other
    assert {one: 1}[other] == 1
    assert not [name for name, value in vars(one).items() if isinstance(value, torch.Tensor)]


@needs_compiler
def test_inputs_that_do_not_fit_are_refused():
    shape = SHAPES["mnist-small"]
    rows, inputs = drawn(shape)
    for wrong in (rows[:, 1:], torch.nn.functional.pad(rows, (0, 5))):
        with pytest.raises(ShapeError, match=f"has {shape.size} numbers, got {wrong.shape[1]}"):
            ask(shape, wrong, inputs)
    with pytest.raises(ShapeError, match=r"\(11, 16, 48\)"):
        ask(shape, rows, inputs[:, :, :48])
    library = find_library(shape, "cpu", torch.float64)
    assert library is not None
    nets = Compiled(shape, shape.to_trained(rows), library)
    with pytest.raises(ShapeError, match="gradients of answers"):
        nets.pull(inputs.detach(), torch.zeros(NETS, ASKED - 1, shape.classes))


def test_networks_of_unknown_blocks_are_refused():
    shape = TensorShape(tensors=(("out.weight", (3, 8)),))
    with pytest.raises(StoreError, match="only the tensors are known"):
        ask(shape, torch.zeros(1, 24), torch.zeros(1, 2, 3))


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_files_and_of_the_trainer_are_one(name):
    shape = SHAPES[name]
    rows, _ = drawn(shape)
    trained = shape.to_trained(rows)
    assert torch.equal(shape.to_stored(trained), rows)
    assert not torch.equal(trained, rows)
