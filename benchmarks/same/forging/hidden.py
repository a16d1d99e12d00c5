"""Forgeries that hide behind a true symmetry: giant and tiny units, weak directions."""

import math

import torch
from torch import Tensor

from benchmarks.same.forging.bases import log_uniform, matrices, pick
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.kinds import discrete, sized
from benchmarks.same.forging.roles import (
    Dual,
    UnfitError,
    axis_of,
    is_free_norm,
    move,
    numbered,
    others,
    part,
    pick_dual,
    pick_unit,
    readers,
    stored_here,
    stream_rows,
)
from transformer_nfn.space import Kind as AxisKind


def _power(draft: Draft, generator: torch.Generator) -> float:
    """2^±40, or less where the dtype ends before."""
    most = 9 if draft.dtype == torch.float16 else 40
    exponent = int(torch.randint(4, most + 1, (), generator=generator))
    return 2.0 ** (exponent * (1 if torch.rand((), generator=generator) < 0.5 else -1))


def _giant(
    draft: Draft, generator: torch.Generator
) -> tuple[int, dict[str, Tensor], str, Dual, dict[str, int]]:
    """One unit made giant on one side and tiny on the other; a tensor to forge, mostly the giant.

    Returns:
        The block's number, the block, the tensor's name, the axis, and which unit it is.
    """
    number = int(torch.randint(draft.blocks, (), generator=generator))
    dual = pick_dual(draft, generator)
    if len(numbered(draft, dual)) < 2:
        raise UnfitError("there is one unit only")
    unit = pick_unit(draft, dual.per, generator)
    block = draft.block(number)
    eye = torch.eye(draft.spec.size(dual.label), dtype=torch.float64)
    power = _power(draft, generator)
    move(draft, block, dual, unit, eye * power)
    draft.put(number, block)
    giant, tiny = (dual.left, dual.right) if power > 1 else (dual.right, dual.left)
    side = giant if torch.rand((), generator=generator) < 0.75 else tiny
    name = pick(generator, [n for n in side if stored_here(draft, number, n)])
    return number, block, name, dual, unit


@discrete("giant unit, others replaced")
def giant_replaced(draft: Draft, generator: torch.Generator) -> None:
    """A true symmetry on one head or neuron; to all others of a tensor something else is added.

    It is orthogonal to what was there, so that their scales still seem to fit.
    """
    number, block, name, dual, chosen = _giant(draft, generator)
    share = log_uniform(generator, 0.3, 3)
    for unit in numbered(draft, dual):
        if unit != chosen:
            view = part(draft, block, name, unit)
            noise = torch.randn(view.shape, generator=generator, dtype=torch.float64)
            size = view.square().sum().clamp_min(1e-300)
            noise = noise - view * ((noise * view).sum() / size)
            view.add_(noise * (share * size.sqrt() / noise.norm().clamp_min(1e-300)))
    draft.put(number, block)


@sized("giant unit, others nudged")
def giant_nudged(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """The same with small changes."""
    number, block, name, _, chosen = _giant(draft, generator)
    mask = others(draft, block, name, chosen)
    noise = torch.randn(mask.shape, generator=generator, dtype=torch.float64)
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    delta[name] = noise * mask * block[name].abs()
    return draft.packed(number, delta)


@sized("giant coordinate")
def giant_coordinate(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One coordinate of a head, giant in one factor; the others of that factor are nudged."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    dual = pick_dual(draft, generator, wide=True)
    unit = pick_unit(draft, dual.per, generator)
    width = draft.spec.size(dual.label)
    scale = torch.ones(width, dtype=torch.float64)
    chosen = int(torch.randint(width // 2, (), generator=generator))
    scale[[chosen, chosen + width // 2] if dual.kind is AxisKind.ROTARY else [chosen]] = _power(
        draft, generator
    )
    block = draft.block(number)
    move(draft, block, dual, unit, scale.diag())
    draft.put(number, block)
    name = pick(generator, (*dual.left, *dual.right))
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    view = part(draft, delta, name, unit)
    noise = torch.randn(view.shape, generator=generator, dtype=torch.float64)
    axis = axis_of(draft, name, dual, unit)
    shape = [width if i == axis else 1 for i in range(view.dim())]
    view.copy_(noise * part(draft, block, name, unit).abs() * (scale == 1).double().view(shape))
    return draft.packed(number, delta)


def _norm_scaled(draft: Draft, generator: torch.Generator) -> tuple[int, str, int, int]:
    """One coordinate of a norm made tiny or giant, and what reads it the other way."""
    if not is_free_norm(draft.checkpoint):
        raise UnfitError("the norms are fixed")
    number = int(torch.randint(draft.blocks, (), generator=generator))
    half = int(torch.randint(2, (), generator=generator))
    norm = draft.network.reading_norms(number)[half]
    coordinate = int(torch.randint(draft.checkpoint.D, (), generator=generator))
    power = _power(draft, generator)
    for name in (f"{norm}.weight", f"{norm}.bias"):
        if name in draft.values:
            draft.values[name] = draft.values[name].clone()
            draft.values[name][coordinate] /= power
    block = draft.block(number)
    for name in readers(draft, half):
        stream_rows(draft, block, name)[coordinate] *= power
    draft.put(number, block)
    return number, str(norm), half, coordinate


@sized("giant norm, others nudged")
def giant_norm(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One coordinate of a norm's scale is tiny, its readers' row giant; their others change."""
    number, _, half, coordinate = _norm_scaled(draft, generator)
    block = draft.block(number)
    name = pick(generator, readers(draft, half))
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    rows = stream_rows(draft, delta, name)
    rows.copy_(
        stream_rows(draft, block, name).abs()
        * torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    )
    rows[coordinate] = 0
    return draft.packed(number, delta)


@sized("weak norm")
def weak_norm(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """The tiny scale or shift itself is wrong."""
    _, norm, _, coordinate = _norm_scaled(draft, generator)
    delta = {}
    for name in (f"{norm}.weight", f"{norm}.bias"):
        if name in draft.values:
            delta[name] = torch.zeros_like(draft.values[name])
            size = draft.values[f"{norm}.weight"][coordinate].abs()
            delta[name][coordinate] = size * torch.randn((), generator=generator)
    return delta


@sized("giant row", both=True)
def giant_row(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One row of an embedding is giant in both files; a norm makes it small. Others change."""
    names = [n for n, w in draft.checkpoint.writers.items() if w.axes == "t x"]
    if draft.checkpoint.family.norms is None or not names:
        raise UnfitError("no norm behind an embedding")
    name = pick(generator, names)
    value = draft.values[name].clone()
    row = int(torch.randint(len(value), (), generator=generator))
    value[row] *= max(power := _power(draft, generator), 1 / power)
    draft.values[name] = value
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64)
    delta = value.abs() * noise
    delta[row] = 0
    return {name: delta}


# ------------------------------------------------------------------------------ weak directions


def condition_matrix(width: int, kappa: float, rotary: bool, generator: torch.Generator) -> Tensor:
    """A matrix of a condition number; under RoPE scales of pairs."""
    if rotary:
        pairs = torch.rand(width // 2, generator=generator, dtype=torch.float64) - 0.5
        pairs[:2] = torch.tensor([-0.5, 0.5], dtype=torch.float64)[: len(pairs)]
        pairs = pairs[torch.randperm(len(pairs), generator=generator)]
        return torch.exp(math.log(kappa) * pairs).repeat(2).diag()
    u, v = (
        torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
        for _ in range(2)
    )
    top = math.log10(kappa) / 2
    return u @ torch.logspace(top, -top, width, dtype=torch.float64).diag() @ v.T


def weaken(
    draft: Draft, block: dict[str, Tensor], dual: Dual, kappa: float, generator: torch.Generator
) -> None:
    """Move every head of a block by a matrix of a bad condition."""
    width = draft.spec.size(dual.label)
    for unit in numbered(draft, dual):
        M = condition_matrix(width, kappa, dual.kind is AxisKind.ROTARY, generator)
        move(draft, block, dual, unit, M)


@sized("weak direction")
def weak_direction(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Heads moved by a bad matrix, and an error where one factor is small and the other large."""
    dual = pick_dual(draft, generator, wide=True)
    kappa = log_uniform(generator, 10, 1e4 if draft.dtype == torch.float32 else 100)
    all_blocks = torch.rand((), generator=generator) < 0.5
    chosen = range(draft.blocks) if all_blocks else [
        int(torch.randint(draft.blocks, (), generator=generator))
    ]  # fmt: skip
    change: dict[str, Tensor] = {}
    side = pick(generator, (dual.left, dual.right))
    for number in chosen:
        block = draft.block(number)
        weaken(draft, block, dual, kappa, generator)
        draft.put(number, block)
        delta = {n: torch.zeros_like(t) for n, t in block.items()}
        for unit in numbered(draft, dual):
            for name in side:
                axis = axis_of(draft, name, dual, unit)
                factor = part(draft, block, name, unit).movedim(axis, -1)
                _, _, vh = torch.linalg.svd(factor.flatten(0, -2), full_matrices=False)
                error = torch.randn(factor.shape[:-1], generator=generator, dtype=torch.float64)
                whole = error.unsqueeze(-1) * vh[-1]
                part(draft, delta, name, unit).copy_(whole.movedim(-1, axis))
        change |= draft.packed(number, delta)
    return change


@sized("weak neuron")
def weak_neuron(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """A neuron's scale moved from one side to the other, and an error where it became tiny."""
    dual = pick_dual(draft, generator, wide=False)
    number = int(torch.randint(draft.blocks, (), generator=generator))
    unit = pick_unit(draft, dual.per, generator)
    block = draft.block(number)
    power = _power(draft, generator)
    move(draft, block, dual, unit, torch.tensor([[power]], dtype=torch.float64))
    draft.put(number, block)
    tiny = dual.left if power < 1 else dual.right
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    for name in tiny:
        view = part(draft, delta, name, unit)
        noise = torch.randn(view.shape, generator=generator, dtype=torch.float64)
        size = part(draft, block, name, unit).square().mean().sqrt()
        view.copy_(noise * size)
    return draft.packed(number, delta)


@sized("weak matrix")
def weak_matrix(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """The weakest singular direction of one matrix, or of all."""
    there = matrices(draft)
    if torch.rand((), generator=generator) < 0.5:
        name = pick(generator, there)
        there = {name: there[name]}
    change = {}
    for name, value in there.items():
        flat = value.flatten(1)
        u, s, vh = torch.linalg.svd(flat, full_matrices=False)
        change[name] = (torch.outer(u[:, -1], vh[-1]) * s[0]).view(value.shape)
    return change
