"""Honest copies: the same function in other numbers, other files, other dtypes."""

from pathlib import Path

import torch

from benchmarks.same.forging.bases import DTYPES, Bases, pick
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.orders import equal_heads, equal_neurons
from benchmarks.same.forging.pairs import Case, Make, Pair, drawn_base, largest_condition, moved
from benchmarks.same.forging.roles import UnfitError, move, part, pick_dual, pick_unit
from transformer_nfn.space import Kind as AxisKind

#: One of so many honest copies is measured too: it says where honest ones lie.
_MEASURED = 10


def _orbit(bases: Bases, case: Case, work: Path) -> Pair:
    """A random member of the orbit."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    exact = bases.exact(case.family, case.dtype, style, seed)
    limit = largest_condition(case.dtype)
    other, details = moved(exact, work / "start", generator, limit)
    theirs = Draft(other).store(work / "b", DTYPES[case.dtype])
    ours = bases.stored(case.family, case.dtype, style, seed)
    return Pair(ours, theirs, {"style": style, "base": seed, **details})


def _shards(bases: Bases, case: Case, work: Path) -> Pair:
    """The same in several files, moved or not."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    exact = bases.exact(case.family, case.dtype, style, seed)
    if case.family.startswith("zoo"):
        raise UnfitError("a zoo's net is one file")
    details = {}
    if torch.rand((), generator=generator) < 0.5:
        exact, details = moved(exact, work / "start", generator, largest_condition(case.dtype))
    count = int(torch.randint(2, 6, (), generator=generator))
    theirs = Draft(exact).store(work / "b", DTYPES[case.dtype], shards=count)
    ours = bases.stored(case.family, case.dtype, style, seed)
    return Pair(ours, theirs, {"style": style, "base": seed, "shards": count, **details})


def _other_dtype(bases: Bases, case: Case, work: Path) -> Pair:
    """A file and its copy in another dtype, up or down, in either order, moved or not."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    coarse = case.dtype if case.dtype != "float32" else pick(generator, ("bfloat16", "float16"))
    up = torch.rand((), generator=generator) < 0.5
    first, second = (coarse, "float32") if up else ("float32", coarse)
    exact = bases.exact(case.family, first, style, seed)
    details = {"from": first, "to": second}
    if torch.rand((), generator=generator) < 0.6:
        exact, more = moved(exact, work / "start", generator, largest_condition(coarse))
        details |= more
    theirs = Draft(exact).store(work / "b", DTYPES[second])
    ours = bases.stored(case.family, first, style, seed)
    if torch.rand((), generator=generator) < 0.3:
        ours, theirs = theirs, ours
    return Pair(ours, theirs, {"style": style, "base": seed, **details})


def _cousins(bases: Bases, case: Case, work: Path) -> Pair:
    """Two files, each rounded once from a common third one, one or both of them moved."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    full = bases.full(case.family, style, seed)
    other = case.dtype if torch.rand((), generator=generator) < 0.6 else pick(generator, DTYPES)
    dtypes = (case.dtype, other)
    files, details = [], {"style": style, "base": seed, "dtypes": dtypes}
    both = torch.rand((), generator=generator) < 0.6
    # What two elements do to each other is one element, so each has the root of the condition.
    condition = largest_condition(*dtypes) ** (0.5 if both else 1.0)
    for number, dtype in enumerate(dtypes):
        start = full
        if number or both:
            start, more = moved(full, work / f"start{number}", generator, condition)
            details[f"moved {number}"] = more
        files.append(Draft(start).store(work / "ab"[number], DTYPES[dtype]))
    return Pair(files[0], files[1], details)


def _giant(bases: Bases, case: Case, work: Path) -> Pair:
    """One unit made larger on one side and smaller on the other, by a power of two."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    most = 5 if case.dtype == "float32" else 2
    details = {"style": style, "base": seed}
    for number in range(draft.blocks):
        dual = pick_dual(draft, generator)
        unit = pick_unit(draft, dual.per, generator)
        power = 2.0 ** int(torch.randint(-most, most + 1, (), generator=generator))
        block = draft.block(number)
        eye = torch.eye(draft.spec.size(dual.label), dtype=torch.float64)
        move(draft, block, dual, unit, eye * power)
        draft.put(number, block)
        details[f"block {number}"] = (dual.label, unit, power)
    theirs = draft.store(work / "b", DTYPES[case.dtype])
    return Pair(bases.stored(case.family, case.dtype, style, seed), theirs, details)


def _equal_units(bases: Bases, case: Case, work: Path) -> Pair:
    """Two heads or neurons that read the same share what they write in another way."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    heads = bool(torch.rand((), generator=generator) < 0.5)
    if heads:
        number, block, (one, two), vo = equal_heads(draft, generator)
        names = list(vo.right)
    else:
        number, block, (one, two), names = equal_neurons(draft, generator)
    ours = draft.store(work / "a", DTYPES[case.dtype])
    for name in names:  # each other's, or each half of the sum
        first, second = part(draft, block, name, one), part(draft, block, name, two)
        if torch.rand((), generator=generator) < 0.5:
            was = first.clone()
            first.copy_(second)
            second.copy_(was)
        else:
            half = (first + second) / 2
            first.copy_(half)
            second.copy_(half)
    draft.put(number, block)
    theirs = draft.store(work / "b", DTYPES[case.dtype])
    return Pair(ours, theirs, {"style": style, "base": seed, "heads": heads}, degenerate=True)


def _signs(bases: Bases, case: Case, work: Path) -> Pair:
    """Reflections and turns of heads: matrices of condition 1, which cost no digits."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    for number in range(draft.blocks):
        dual = pick_dual(draft, generator, wide=True)
        width = draft.spec.size(dual.label)
        sign = 1.0 - 2.0 * torch.randint(2, (width,), generator=generator).double()
        if dual.kind is AxisKind.ROTARY:
            sign = sign[: width // 2].repeat(2)
        block = draft.block(number)
        move(draft, block, dual, pick_unit(draft, dual.per, generator), sign.diag())
        draft.put(number, block)
    theirs = draft.store(work / "b", DTYPES[case.dtype])
    ours = bases.stored(case.family, case.dtype, style, seed)
    return Pair(ours, theirs, {"style": style, "base": seed})


HONEST: dict[str, Make] = {
    "honest: orbit": _orbit,
    "honest: shards": _shards,
    "honest: other dtype": _other_dtype,
    "honest: cousins": _cousins,
    "honest: giant unit": _giant,
    "honest: equal units": _equal_units,
    "honest: signs": _signs,
}


def honest(bases: Bases, case: Case, work: Path) -> Pair:
    """Make an honest pair of a kind."""
    pair = HONEST[case.kind](bases, case, work)
    pair.honest = True
    pair.measured = case.seed % _MEASURED == 0
    return pair
