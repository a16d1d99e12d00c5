"""What people do with PyTorch, done with everything that takes tensors: docs/reference/torch.md."""

import copy
import pickle  # noqa: TID251 - what a DataLoader's workers and torch.save do
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.optim.swa_utils import AveragedModel
from torch.utils import _pytree as pytree

from tests.contracts.subjects import COMPILED_WITH, ELSEWHERE, SUBJECTS, Subject
from transformer_nfn import group, layers, models, space


def floats(tree: Any) -> list[Tensor]:
    """Tensors of floating-point numbers, those that have derivatives."""
    found = [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [leaf for leaf in found if leaf.is_floating_point()]


def total(tree: Any) -> Tensor:
    """A smooth number that depends on all of them."""
    return torch.stack([leaf.double().sin().sum() for leaf in floats(tree)]).sum()


def close(got: Any, expected: Any, tolerance: float = 1e-9) -> None:
    one, two = pytree.tree_leaves(got), pytree.tree_leaves(expected)
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def moved(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return pytree.tree_map(lambda leaf: change(leaf) if leaf.is_floating_point() else leaf, tree)


def copies(subject: Subject) -> None:
    model, inputs = subject.make(), subject.inputs(2, 0)
    expected = model(*inputs)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        close(again(*inputs), expected)
    average = AveragedModel(model)
    average.update_parameters(model)
    close(average(*inputs), expected)


def state_dict(subject: Subject) -> None:
    model, other, inputs = subject.make(), subject.make(), subject.inputs(2, 0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(model.state_dict())
    close(other(*inputs), model(*inputs))


def func_grad(subject: Subject) -> None:
    """Of inputs and, for a module, of its parameters, as `backward` gives them."""
    model, inputs = subject.make(), subject.inputs(2, 0)
    leaves = moved(inputs, lambda leaf: leaf.clone().requires_grad_())
    parameters = dict(model.named_parameters()) if isinstance(model, nn.Module) else {}
    total(model(*leaves)).backward()
    wanted = [p.grad for p in (*floats(leaves), *parameters.values())]

    _, structure = pytree.tree_flatten(inputs)
    flat = pytree.tree_leaves(inputs)

    def run(numbers: list[Tensor], named: dict[str, Tensor]) -> Tensor:
        supply = iter(numbers)
        filled = [next(supply) if leaf.is_floating_point() else leaf for leaf in flat]
        arguments = pytree.tree_unflatten(filled, structure)
        if isinstance(model, nn.Module):
            return total(functional_call(model, named, arguments))
        return total(model(*arguments))

    detached = {name: p.detach() for name, p in parameters.items()}
    got = grad(run, argnums=(0, 1))(floats(inputs), detached)
    for a, b in zip(pytree.tree_leaves(got), wanted, strict=True):
        torch.testing.assert_close(a, torch.zeros_like(a) if b is None else b)


def func_vmap(subject: Subject) -> None:
    """Over batches of batches, as a loop does it."""
    model = subject.make()
    one, two = subject.inputs(2, 0), subject.inputs(2, 1)
    stacked = pytree.tree_map(lambda a, b: torch.stack([a, b]), one, two)
    got = vmap(lambda *arguments: model(*arguments))(*stacked)
    expected = pytree.tree_map(lambda a, b: torch.stack([a, b]), model(*one), model(*two))
    close(got, expected)


def func_jvp(subject: Subject) -> None:
    """A directional derivative, against a difference of two runs."""
    model, inputs = subject.make(), subject.inputs(2, 0)
    flat, structure = pytree.tree_flatten(inputs)
    places = [i for i, leaf in enumerate(flat) if leaf.is_floating_point()]
    along = [torch.full_like(flat[i], 0.01).sin() for i in places]

    def run(*numbers: Tensor) -> Tensor:
        filled = list(flat)
        for i, number in zip(places, numbers, strict=True):
            filled[i] = number
        return total(model(*pytree.tree_unflatten(filled, structure)))

    start = [flat[i] for i in places]
    _, derivative = jvp(run, tuple(start), tuple(along))
    step = 1e-6
    ahead, behind = (
        run(*(s + sign * step * a for s, a in zip(start, along, strict=True))) for sign in (1, -1)
    )
    torch.testing.assert_close(derivative, (ahead - behind) / (2 * step), rtol=1e-4, atol=1e-5)


def double_backward(subject: Subject) -> None:
    model = subject.make()
    leaves = moved(subject.inputs(2, 0), lambda leaf: leaf.clone().requires_grad_())
    first = torch.autograd.grad(
        total(model(*leaves)), floats(leaves), create_graph=True, allow_unused=True
    )
    used = [g for g in first if g is not None and g.requires_grad]
    second = torch.autograd.grad(
        torch.stack([g.square().sum() for g in used]).sum(), floats(leaves), allow_unused=True
    )
    assert any(g is not None and g.isfinite().all() for g in second)


def autocast(subject: Subject) -> None:
    """Forward and backward; float32 outside, bfloat16 in the products inside."""
    model, inputs = subject.make(), moved(subject.inputs(2, 0), Tensor.float)
    if isinstance(model, nn.Module):
        model = model.float()
    expected = model(*inputs)
    leaves = moved(inputs, lambda leaf: leaf.clone().requires_grad_())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(*leaves)
    total(got).backward()
    for a, b in zip(floats(got), floats(expected), strict=True):
        assert (a.double() - b.double()).norm() <= 0.1 * b.double().norm() + 1e-3


def compiled(subject: Subject) -> None:
    torch.compiler.reset()
    subject = subject.small or subject
    model, inputs = subject.make(), subject.inputs(2, 0)
    got = torch.compile(model, backend="eager", fullgraph=True)(*inputs)
    close(got, model(*inputs))


def empty(subject: Subject) -> None:
    """No network at all: as many answers, of the usual shapes."""
    model = subject.make()
    none, some = model(*subject.inputs(0, 0)), model(*subject.inputs(2, 0))
    for a, b in zip(floats(none), floats(some), strict=True):
        assert a.shape == torch.Size([0 if n == 2 and i == 0 else n for i, n in enumerate(b.shape)])


def half(subject: Subject) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        model = subject.make()
        model = model.to(dtype) if isinstance(model, nn.Module) else model
        got = model(*moved(subject.inputs(2, 0), partial(_quarter, dtype)))
        assert all(leaf.isfinite().all() for leaf in floats(got))


def _quarter(dtype: torch.dtype, leaf: Tensor) -> Tensor:
    return (leaf / 4).to(dtype)


def meta(subject: Subject) -> None:
    """Shapes without numbers: the model and the inputs allocate nothing."""
    model, inputs = subject.make(), subject.inputs(2, 0)
    expected = [leaf.shape for leaf in floats(model(*inputs))]
    if isinstance(model, nn.Module):
        model = model.to("meta")
    got = model(*pytree.tree_map(lambda leaf: leaf.to("meta"), inputs))
    assert [leaf.shape for leaf in floats(got)] == expected
    assert all(leaf.is_meta for leaf in floats(got))


#: What is asked, in the words of docs/reference/torch.md.
CONTRACTS: dict[str, Callable[[Subject], None]] = {
    "copy, pickle, EMA": copies,
    "state_dict": state_dict,
    "func.grad": func_grad,
    "vmap": func_vmap,
    "jvp": func_jvp,
    "double backward": double_backward,
    "autocast": autocast,
    "compile": compiled,
    "no networks": empty,
    "half": half,
    "meta": meta,
}
OF_MODULES = ("copy, pickle, EMA", "state_dict")

#: What does not hold, and why. Each is a test that must fail.
LIMITS: dict[tuple[str, str], str] = {
    ("GroupElement @ other", "compile"): "torch.compile traces no `@` of other classes",
    ("for_layers", "compile"): "it makes a declaration; call it before",
}

CASES = [
    pytest.param(
        name,
        contract,
        marks=[pytest.mark.xfail(reason=LIMITS[name, contract], strict=True)]
        if (name, contract) in LIMITS
        else [],
        id=f"{name}-{contract}",
    )
    for name, subject in SUBJECTS.items()
    for contract in CONTRACTS
    if (subject.is_module or contract not in OF_MODULES)
    and not (contract == "compile" and name in COMPILED_WITH)
]


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it does not vectorise
@pytest.mark.parametrize(("name", "contract"), CASES)
def test_contract(name: str, contract: str) -> None:
    CONTRACTS[contract](SUBJECTS[name])


@pytest.mark.filterwarnings("ignore")
def test_a_model_is_exported() -> None:
    subject = SUBJECTS["InvariantLayer"].small
    assert subject is not None
    model, inputs = subject.make(), subject.inputs(2, 0)
    close(torch.export.export(model, inputs).module()(*inputs), model(*inputs))


def test_every_public_name_is_asked() -> None:
    asked = {word.split("(")[0].split(".")[0] for name in SUBJECTS for word in name.split(" ")[:1]}
    elsewhere = {name for names in ELSEWHERE.values() for name in names.split()}
    public = {name for room in (space, group, layers, models) for name in room.__all__}
    assert public - asked - elsewhere == set()
    assert (asked | elsewhere) - public == set()


def table() -> str:
    """What holds, as docs/reference/torch.md has it."""
    lines = [["", *CONTRACTS], ["---"] * (1 + len(CONTRACTS))]
    for name, subject in SUBJECTS.items():
        cells = [f"`{name}`" if " and " not in name else name]
        for contract in CONTRACTS:
            if contract in OF_MODULES and not subject.is_module:
                cells.append("")
            elif contract == "compile" and name in COMPILED_WITH:
                cells.append(f"in `{COMPILED_WITH[name]}`")
            else:
                cells.append("no" if (name, contract) in LIMITS else "yes")
        lines.append(cells)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def test_the_page_says_what_holds() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "torch.md").read_text()
    assert table() in page, f"put this into docs/reference/torch.md:\n{table()}"
    for (name, contract), reason in LIMITS.items():
        assert f"`{name}`, {contract}: {reason}" in page
