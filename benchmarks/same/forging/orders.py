"""Forgeries by order and sign: units, tensors or blocks exchanged, equal units summed wrongly."""

from collections.abc import Iterable

import torch
from torch import Tensor

from benchmarks.same.forging.bases import matrices, pick
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.kinds import discrete, sized
from benchmarks.same.forging.roles import (
    Dual,
    UnfitError,
    bias_row,
    duals,
    having,
    head_axes,
    neuron_axis,
    part,
    pick_unit,
    readers,
    stored_here,
)
from transformer_nfn.space import Kind as AxisKind


def _two(draft: Draft, label: str, generator: torch.Generator) -> tuple[int, int]:
    size = draft.spec.size(label)
    if size < 2:
        raise UnfitError(f"there is one {label} only")
    one, two = torch.randperm(size, generator=generator)[:2].tolist()
    return one, two


def _exchange(block: dict[str, Tensor], draft: Draft, name: str, one: dict, two: dict) -> None:
    a, b = part(draft, block, name, one), part(draft, block, name, two)
    a_was = a.clone()
    a.copy_(b)
    b.copy_(a_was)


def attention_duals(draft: Draft) -> tuple[Dual, Dual]:
    """Queries against keys, values against outputs."""
    wide = [dual for dual in duals(draft) if draft.spec.size(dual.label) > 1]
    if len(wide) < 2:
        raise UnfitError("queries and keys are not seen by their product")
    return wide[0], wide[1]


@discrete("heads' values exchanged")
def values_exchanged(draft: Draft, generator: torch.Generator) -> None:
    """Two heads keep their queries and keys and exchange values and outputs."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    qk, vo = attention_duals(draft)
    outer = qk.per[0]
    one, two = _two(draft, outer, generator)
    block = draft.block(number)
    for name in (*vo.left, *vo.right):
        _exchange(block, draft, name, {outer: one}, {outer: two})
    draft.put(number, block)


@discrete("outputs exchanged in a group")
def group_exchanged(draft: Draft, generator: torch.Generator) -> None:
    """Two heads that share keys and values keep their queries and exchange their outputs."""
    axes = head_axes(draft)
    if len(axes) < 2:
        raise UnfitError("no groups")
    number = int(torch.randint(draft.blocks, (), generator=generator))
    _, vo = attention_duals(draft)
    outer = pick_unit(draft, axes[:1], generator)
    one, two = _two(draft, axes[1], generator)
    block = draft.block(number)
    for name in vo.right:
        _exchange(block, draft, name, {**outer, axes[1]: one}, {**outer, axes[1]: two})
    draft.put(number, block)


def equal_heads(
    draft: Draft, generator: torch.Generator
) -> tuple[int, dict[str, Tensor], tuple[dict, dict], Dual]:
    """Make two heads of a draft read the same: queries, keys and values."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    qk, vo = attention_duals(draft)
    outer = qk.per[0]
    if draft.spec.block.axes[outer].kind is AxisKind.FREE:
        raise UnfitError("no two heads see positions alike")
    one, two = ({outer: index} for index in _two(draft, outer, generator))
    block = draft.block(number)
    for name in (*qk.left, *qk.right, *vo.left):
        part(draft, block, name, two).copy_(part(draft, block, name, one))
    draft.put(number, block)
    return number, block, (one, two), vo


@sized("equal heads, wrong sum", both=True)
def equal_heads_wrong(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """Two heads that read the same: what one loses the other gains, and a little is missing."""
    number, block, units, vo = equal_heads(draft, generator)
    return _lost_between(draft, number, block, units, vo.right, generator)


def equal_neurons(
    draft: Draft, generator: torch.Generator
) -> tuple[int, dict[str, Tensor], tuple[dict, dict], list[str]]:
    """Make two neurons of a draft read the same."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    label = neuron_axis(draft)
    one, two = ({label: index} for index in _two(draft, label, generator))
    block = draft.block(number)
    last = [i for i in having(draft, label) if draft.spec.block.tensors[i][-1].label == "x"]
    for name in having(draft, label):
        if name not in last:
            part(draft, block, name, two).copy_(part(draft, block, name, one))
    draft.put(number, block)
    return number, block, (one, two), last


@sized("equal neurons, wrong sum", both=True)
def equal_neurons_wrong(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """The same of two neurons."""
    number, block, units, last = equal_neurons(draft, generator)
    return _lost_between(draft, number, block, units, last, generator)


def _lost_between(
    draft: Draft,
    number: int,
    block: dict[str, Tensor],
    units: tuple[dict, dict],
    names: Iterable[str],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Move something from one unit to its equal (a true symmetry), and lose as much of it."""
    one, two = units
    shared = {n: torch.zeros_like(t) for n, t in block.items()}
    lost = {n: torch.zeros_like(t) for n, t in block.items()}
    for name in names:
        view = part(draft, shared, name, one)
        noise = torch.randn(view.shape, generator=generator, dtype=torch.float64)
        view.copy_(noise * block[name].square().mean().sqrt())
        part(draft, shared, name, two).copy_(-view)
        part(draft, lost, name, one).copy_(view)
    draft.later = draft.packed(number, shared)
    return draft.packed(number, lost)


@discrete("neurons' outputs exchanged")
def neurons_exchanged(draft: Draft, generator: torch.Generator) -> None:
    """Two neurons keep what they read and exchange what they write."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    label = neuron_axis(draft)
    one, two = ({label: index} for index in _two(draft, label, generator))
    block = draft.block(number)
    for name in having(draft, label):
        if draft.spec.block.tensors[name][-1].label == "x":
            _exchange(block, draft, name, one, two)
    draft.put(number, block)


@discrete("blocks exchanged")
def blocks_exchanged(draft: Draft, generator: torch.Generator) -> None:
    """Two blocks, with their norms."""
    one, two = (draft.network.block_name(number) for number in (0, 1))
    for name in [n for n in draft.values if n.startswith(one)]:
        other = two + name.removeprefix(one)
        if other not in draft.values:  # what all blocks share is in the first
            continue
        draft.values[name], draft.values[other] = draft.values[other], draft.values[name]


@discrete("bias sign")
def bias_sign(draft: Draft, generator: torch.Generator) -> None:
    """A bias that matters has the other sign: of queries, values, neurons, outputs, norms."""
    names = [n for n, v in draft.values.items() if v.is_floating_point() and v.dim() == 1]
    free = draft.checkpoint.settings.rope is None
    biases = [n for n in names if not n.endswith("weight") and draft.values[n].any()]
    biases = [n for n in biases if not (free and "key" in n)]
    if not biases:
        raise UnfitError("no biases")
    name = pick(generator, biases)
    draft.values[name] = -draft.values[name]


@sized("bias of queries, keys or values")
def bias_moved(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One of them is moved, where nothing else takes it back; of keys under RoPE only."""
    qk, _ = attention_duals(draft)
    names = [n for n in readers(draft, 0) if draft.checkpoint.settings.rope or n not in qk.right]
    number = int(torch.randint(draft.blocks, (), generator=generator))
    block = draft.block(number)
    names = [n for n in names if bias_row(draft, block, n) is not None]
    if not names:
        raise UnfitError("no such biases")
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    name = pick(generator, names)
    row = bias_row(draft, delta, name)
    row.copy_(torch.randn(row.shape, generator=generator, dtype=torch.float64))
    return draft.packed(number, delta)


@discrete("tensors exchanged")
def tensors_exchanged(draft: Draft, generator: torch.Generator) -> None:
    """Two tensors of the same shape."""
    there = [(n, v.shape) for n, v in draft.values.items() if v.is_floating_point()]
    pairs = [
        (a, b) for i, (a, s) in enumerate(there) for b, t in there[:i] if s == t and len(s)
        and not torch.equal(draft.values[a], draft.values[b])
    ]  # fmt: skip
    one, two = pick(generator, pairs)
    draft.values[one], draft.values[two] = draft.values[two], draft.values[one]


@discrete("sign of a row")
def sign_of_row(draft: Draft, generator: torch.Generator) -> None:
    """One row of one matrix has the other sign."""
    name = pick(generator, [n for n in matrices(draft) if n not in draft.checkpoint.writers])
    value = draft.values[name].clone()
    value[int(torch.randint(len(value), (), generator=generator))] *= -1
    draft.values[name] = value


@discrete("transposed")
def transposed(draft: Draft, generator: torch.Generator) -> None:
    """A square matrix the other way round."""
    square = [n for n, v in matrices(draft).items() if v.shape[-1] == v.shape[-2]]
    if not square:
        raise UnfitError("no square matrix")
    name = pick(generator, square)
    draft.values[name] = draft.values[name].transpose(-1, -2).contiguous()


@discrete("pairs of RoPE", length=48)
def rope_pairs(draft: Draft, generator: torch.Generator) -> None:
    """Pairs of coordinates beside each other, where the family has them half a head apart."""
    rotary = [dual for dual in duals(draft) if dual.kind is AxisKind.ROTARY]
    if not rotary:
        raise UnfitError("no rotary positions")
    width = draft.spec.size(rotary[0].label)
    order = torch.arange(width).view(2, -1).T.reshape(-1)
    if torch.equal(order, torch.arange(width)):
        raise UnfitError("one pair only")
    number = int(torch.randint(draft.blocks, (), generator=generator))
    block = draft.block(number)
    for name in (*rotary[0].left, *rotary[0].right):
        labels = [index.label for index in draft.spec.block.tensors[name]]
        block[name] = block[name].index_select(labels.index(rotary[0].label), order)
    draft.put(number, block)


@discrete("group's keys exchanged")
def keys_exchanged(draft: Draft, generator: torch.Generator) -> None:
    """Two heads keep queries, values and outputs and exchange their keys."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    qk, _ = attention_duals(draft)
    one, two = _two(draft, qk.per[0], generator)
    block = draft.block(number)
    for name in qk.right:
        if not stored_here(draft, number, name):
            raise UnfitError(f"no {name}")
        _exchange(block, draft, name, {qk.per[0]: one}, {qk.per[0]: two})
    draft.put(number, block)
