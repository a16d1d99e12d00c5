"""Forgeries in weights that few inputs reach: a word, a position, a neuron, a single number."""

import torch
from torch import Tensor

from benchmarks.same.forging.bases import pick
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.kinds import sized
from benchmarks.same.forging.measure import CALIBRATED, CALIBRATION, LENGTH, draw
from benchmarks.same.forging.roles import (
    UnfitError,
    bias_row,
    having,
    head_axes,
    neuron_axis,
    part,
    pick_unit,
    readers,
    stored_here,
)
from transformer_nfn.identity import run
from transformer_nfn.identity.running.inputs import NetInputs, parts_of


def _row(draft: Draft, name: str, row: int, generator: torch.Generator) -> dict[str, Tensor]:
    value = draft.values[name]
    delta = torch.zeros_like(value)
    noise = torch.randn(value.shape[1:], generator=generator, dtype=torch.float64)
    delta[row] = noise * value.square().mean().sqrt()
    return {name: delta}


@sized("one word")
def one_word(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One row of the first embedding, that of a word which sizes are measured on."""
    name, writer = next(iter(draft.checkpoint.writers.items()), (None, None))
    if name is None or writer.axes != "t x" or draft.checkpoint.family.norms is None:
        raise UnfitError("no words")
    seen = parts_of(draw(draft.checkpoint, CALIBRATION, LENGTH, CALIBRATED))[-1]
    return _row(draft, name, pick(generator, seen.flatten().tolist()), generator)


@sized("far position")
def far_position(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One row of an embedding of positions, beyond the twelfth."""
    tables = [n for n, w in draft.checkpoint.writers.items() if w.axes == "t x"][1:2]
    if not tables or draft.checkpoint.family.norms is None:
        raise UnfitError("no positions")
    row = int(torch.randint(LENGTH // 2, LENGTH, (), generator=generator))
    return _row(draft, tables[0], row, generator)


@sized("one output")
def one_output(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One row of a head, that is one word or class."""
    heads = [head.weight for head in draft.checkpoint.heads.values()]
    if draft.checkpoint.hidden_head:
        name = draft.checkpoint.hidden_head[2]  # a x o: a column is one class
        value = draft.values[name]
        delta = torch.zeros_like(value)
        column = int(torch.randint(value.shape[1], (), generator=generator))
        delta[:, column] = torch.randn(len(value), generator=generator, dtype=torch.float64)
        return {name: delta}
    if not heads:
        raise UnfitError("no heads")
    name = pick(generator, heads)
    row = int(torch.randint(len(draft.values[name]), (), generator=generator))
    return _row(draft, name, row, generator)


@sized("one unit")
def one_unit(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """One head or one neuron, in one of its tensors."""
    labels = (
        head_axes(draft) if torch.rand((), generator=generator) < 0.5 else (neuron_axis(draft),)
    )
    number = int(torch.randint(draft.blocks, (), generator=generator))
    name = pick(generator, [n for n in having(draft, labels[0]) if stored_here(draft, number, n)])
    block = draft.block(number)
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    view = part(draft, delta, name, pick_unit(draft, labels, generator))
    noise = torch.randn(view.shape, generator=generator, dtype=torch.float64)
    view.copy_(noise * block[name].square().mean().sqrt())
    return draft.packed(number, delta)


@sized("one weight")
def one_weight(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """A single number."""
    name = pick(generator, [n for n, v in draft.values.items() if v.is_floating_point()])
    delta = torch.zeros_like(draft.values[name])
    place = int(torch.randint(delta.numel(), (), generator=generator))
    delta.view(-1)[place] = draft.values[name].square().mean().sqrt()
    return {name: delta}


@sized("rare neuron", both=True)
def rare_neuron(draft: Draft, generator: torch.Generator) -> dict[str, Tensor]:
    """A neuron that in both files is active for few tokens only; what it writes then differs."""
    number = int(torch.randint(draft.blocks, (), generator=generator))
    label = neuron_axis(draft)
    unit = pick_unit(draft, (label,), generator)
    block = draft.block(number)
    reader = readers(draft, 1)[0]
    bias = bias_row(draft, block, reader)
    if bias is None:
        raise UnfitError("its neurons have no bias")
    writers = [n for n in having(draft, label) if n not in readers(draft, 1) and block[n].dim() > 1]
    writer = pick(generator, [n for n in writers if stored_here(draft, number, n)])
    # By bisection: so far down that its writing changes the outputs of few inputs.
    inputs = draw(draft.checkpoint, 64, LENGTH, 2)
    bias = bias[unit[label]]
    low, high = -60.0, 0.0
    for _ in range(7):
        bias.fill_((low + high) / 2)
        draft.put(number, block)
        plain = _outputs(draft, inputs)
        changed = draft.copy()
        other = {n: t.clone() for n, t in block.items()}
        part(draft, other, writer, unit).mul_(2)
        changed.put(number, other)
        moved = (_outputs(changed, inputs) - plain).norm(dim=1)
        share = (moved > 1e-2 * moved.max().clamp_min(1e-300)).double().mean().item()
        seen = moved.max() > 1e-3 * plain.norm(dim=1).mean()
        middle = (low + high) / 2
        low, high = (low, middle) if seen and share > 0.05 else (middle, high)
    bias.fill_(high)
    draft.put(number, block)
    delta = {n: torch.zeros_like(t) for n, t in block.items()}
    view = part(draft, delta, writer, unit)
    noise = torch.randn(view.shape, generator=generator, dtype=torch.float64)
    view.copy_(noise * block[writer].square().mean().sqrt())
    return draft.packed(number, delta)


def _outputs(draft: Draft, inputs: NetInputs) -> Tensor:
    return torch.cat([out.flatten(1) for out in run(draft.view(), inputs).values()], dim=1)
