"""An attacker who has the code: gradient steps within what the comparison of weights tolerates.

He starts from an honest copy, often one whose heads were moved by a badly conditioned matrix, so
that rounding is large in one factor. The change of the weights that moves the outputs most is found
by gradients through the network itself; each step is scaled back, unit by unit, to what the
comparison tolerates. Of the multiples of that change he stores the largest that still passes.
"""

from pathlib import Path

import torch
from torch import Tensor

from benchmarks.same.forging.bases import Bases, log_uniform, pick
from benchmarks.same.forging.budget import BUDGETS, Budget, Delta, passes, rounding
from benchmarks.same.forging.draft import Draft, differentiable_run, remove
from benchmarks.same.forging.hidden import weaken
from benchmarks.same.forging.kinds import special
from benchmarks.same.forging.measure import draw
from benchmarks.same.forging.pairs import Case, Pair, start
from benchmarks.same.forging.roles import pick_dual

_INPUTS, _LENGTH = 12, 16
_STEPS = 4
_DOUBLINGS, _HALVINGS = 8, 5


def change(draft: Draft, budget: Budget, generator: torch.Generator, disguise: str) -> Delta:
    """The change within a budget that moves the outputs most.

    How far the outputs move is convex in the change, so the best one lies on the limit: each step
    takes the gradient itself, scaled to the limit of every unit.
    """
    floating = {n: v for n, v in draft.values.items() if v.is_floating_point()}
    noise = {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64) * value.abs()
        for name, value in floating.items()
    }
    delta = budget(noise)
    seed = int(torch.randint(10**6, (), generator=generator))
    inputs = draw(draft.checkpoint, _INPUTS, _LENGTH, seed)
    with torch.no_grad():
        plain = differentiable_run(draft.view(), inputs)
    size = {head: out.square().mean().clamp_min(1e-300) for head, out in plain.items()}
    for _ in range(_STEPS):
        leaves = {name: value.clone().requires_grad_() for name, value in delta.items()}
        probe = draft.copy()
        probe.values |= {name: draft.values[name] + leaf for name, leaf in leaves.items()}
        moved = differentiable_run(probe.view(), inputs)
        gain = sum(((moved[h] - plain[h]).square().mean() / size[h]).sqrt() for h in plain)
        gain.backward()
        steps = {n: leaf.grad for n, leaf in leaves.items() if leaf.grad is not None}
        delta = budget(disguised(draft, steps, disguise))
    return delta


def disguised(draft: Draft, delta: Delta, disguise: str) -> Delta:
    """A change that looks less like one.

    Args:
        draft: The network.
        delta: The change.
        disguise: "none"; "spread" gives every matrix equal singular values, and takes out what
            points along the weights; "digits" moves each number by its own rounding, up or down.
    """
    if disguise == "digits":
        return {n: d.sign() * rounding(draft.values[n], draft.dtype) for n, d in delta.items()}
    if disguise == "spread":
        return {name: _spread(value, draft.values[name]) for name, value in delta.items()}
    return delta


def _spread(change: Tensor, weight: Tensor) -> Tensor:
    if change.dim() < 2 or not change.any():
        return change
    flat = change.flatten(1)
    u, _, vh = torch.linalg.svd(flat, full_matrices=False)
    flat = (u @ vh).view(change.shape)
    return flat - weight * ((flat * weight).sum() / weight.square().sum().clamp_min(1e-300))


def largest(
    draft: Draft, delta: Delta, ours: Path, work: Path, dither: torch.Generator | None
) -> tuple[Path, float]:
    """Store the largest multiple of a change that the comparison of weights lets pass."""
    state = None if dither is None else dither.get_state()

    def stored(scale: float, name: str) -> Path:
        remove(work / name)
        other = draft.copy()
        other.add(delta, scale)
        if dither is not None:
            dither.set_state(state)
        return other.store(work / name, draft.dtype, dither=dither)

    low, high = 0.0, 0.25
    for _ in range(_DOUBLINGS):
        if not passes(ours, stored(high, "try")):
            break
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(ours, stored(middle, "try")) else (low, middle)
    # Where not even a small change passes, the smallest one that did not is what he has.
    chosen = low or high
    return stored(chosen, "b"), chosen


@special("adaptive")
def attack(bases: Bases, case: Case, work: Path) -> Pair:
    """One attack."""
    generator = case.generator
    ours, draft = start(bases, case, work, generator)
    details = draft.details
    if torch.rand((), generator=generator) < 0.5:
        kappa = log_uniform(generator, 1, 1e3 if case.dtype == "float32" else 4)
        for number in range(draft.blocks):
            block = draft.block(number)
            weaken(draft, block, pick_dual(draft, generator, wide=True), kappa, generator)
            draft.put(number, block)
        details["weakened"] = round(kappa, 1)
    both = bool(torch.rand((), generator=generator) < 0.3)
    if both:
        ours = draft.store(work / "a", draft.dtype)
        draft.values = Draft(ours).values
    name = pick(generator, BUDGETS)
    disguise = pick(generator, ("none", "spread", "digits"))
    delta = change(draft, BUDGETS[name](draft), generator, disguise)
    on_grid = both or not ({"parts", "weakened"} & set(details))
    theirs, scale = largest(draft, delta, ours, work, generator if on_grid else None)
    details |= {"budget": name, "disguise": disguise, "both": both, "scale": scale}
    return Pair(ours, theirs, details)
