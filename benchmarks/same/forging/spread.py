"""Forgeries spread over many weights: noise, and changes that point in one direction."""

import torch
from torch import Tensor

from benchmarks.same.forging.bases import matrices, pick
from benchmarks.same.forging.draft import Draft, differentiable_run
from benchmarks.same.forging.kinds import sized
from benchmarks.same.forging.measure import draw
from benchmarks.same.forging.roles import (
    having,
    head_axes,
    neuron_axis,
    part,
    pick_unit,
    stored_here,
)


def _normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=torch.float64)


def _floating(draft: Draft) -> dict[str, Tensor]:
    return {n: v for n, v in draft.values.items() if v.is_floating_point()}


@sized("noise")
def noise(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Every weight times 1 + σ."""
    return {n: v * _normal(v, generator) for n, v in _floating(draft).items()}


@sized("noise in one tensor")
def noise_in_one(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One tensor, of a block or outside."""
    name = pick(generator, _floating(draft))
    value = draft.values[name]
    return {name: value.square().mean().sqrt() * _normal(value, generator)}


def low_rank(value: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """A change of some rank, as large in every matrix relative to its weights."""
    flat = value.flatten(1)
    one = torch.randn(flat.shape[0], rank, generator=generator, dtype=torch.float64)
    two = torch.randn(rank, flat.shape[1], generator=generator, dtype=torch.float64)
    return (one @ two / rank**0.5 * value.square().mean().sqrt()).view(value.shape)


@sized("low rank in one matrix")
def low_rank_in_one(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Rank 1, 2 or 4."""
    name = pick(generator, matrices(draft))
    return {name: low_rank(draft.values[name], pick(generator, (1, 2, 4)), generator)}


@sized("low rank in all")
def low_rank_in_all(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Rank 1, 2 or 4 in every matrix."""
    rank = pick(generator, (1, 2, 4))
    return {name: low_rank(value, rank, generator) for name, value in matrices(draft).items()}


@sized("tensor scaled")
def tensor_scaled(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One tensor times a number."""
    name = pick(generator, _floating(draft))
    return {name: draft.values[name]}


@sized("all scaled")
def all_scaled(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Every tensor times the same number, as weight decay does."""
    return _floating(draft)


@sized("unit scaled")
def unit_scaled(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One head or neuron, in one of its tensors."""
    labels = (
        head_axes(draft) if torch.rand((), generator=generator) < 0.5 else (neuron_axis(draft),)
    )
    number = int(torch.randint(draft.blocks, (), generator=generator))
    names = [n for n in having(draft, labels[0]) if stored_here(draft, number, n)]
    name = pick(generator, names)
    block = draft.block(number)
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    unit = pick_unit(draft, labels, generator)
    part(draft, delta, name, unit).copy_(part(draft, block, name, unit))
    return draft.packed(number, delta)


@sized("shift")
def shift(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """The same number added to all weights of one tensor."""
    name = pick(generator, matrices(draft))
    value = draft.values[name]
    return {name: torch.ones_like(value) * value.square().mean().sqrt()}


@sized("toward another network")
def toward_another(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """A step on the line to an unrelated network, as merging makes it."""
    return {
        n: v.square().mean().sqrt() * _normal(v, generator) - v for n, v in _floating(draft).items()
    }


def gradients(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Of a loss that asks for other outputs on a few inputs."""
    leaves = {n: v.clone().requires_grad_(v.is_floating_point()) for n, v in draft.values.items()}
    probe = draft.copy()
    probe.values = leaves
    seed = int(torch.randint(2**31, (), generator=generator))
    inputs = draw(draft.checkpoint, 4, 12, seed)
    loss = torch.zeros((), dtype=torch.float64)
    for out in differentiable_run(probe.view(), inputs).values():
        goal = torch.randn(out.shape, generator=generator, dtype=out.dtype)
        loss = loss + (out - out.detach().std() * goal).square().mean()
    loss.backward()
    return {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}


@sized("fine-tune")
def fine_tune(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """A step of plain gradient descent."""
    return {name: -grad for name, grad in gradients(draft, generator).items()}


@sized("fine-tune, a digit each")
def fine_tune_signs(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """As Adam's first step, and each weight by the same share of itself: some roundings."""
    return {
        name: -grad.sign() * draft.values[name].abs()
        for name, grad in gradients(draft, generator).items()
    }
