"""Experts that are equally good for a few words, and exchanged: a loader goes by their order."""

from pathlib import Path

import torch

from benchmarks.same.forging.bases import DTYPES, Bases
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.kinds import special
from benchmarks.same.forging.measure import LENGTH, draw
from benchmarks.same.forging.pairs import Case, Pair, drawn_base
from benchmarks.same.forging.roles import UnfitError, having
from transformer_nfn.identity import run

#: Sizes of what those words have in the one coordinate that tells them from others, and of what all
#: words have in another one.
_WORD, _ALL = 4.0, 4.0


@special("experts tie for few words")
def tied_experts(bases: Bases, case: Case, work: Path) -> Pair:
    """In the first block, by scores that are exactly 0, which rounding does not move.

    Both experts read nothing; or each another coordinate, which these words do not have.
    """
    generator = case.generator
    style, seed = drawn_base(case, generator)
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    if not (routers := list(draft.spec.block.shifted)):
        raise UnfitError("no experts")
    words = draft.values[next(iter(draft.checkpoint.writers))]
    count = len(words)
    few = torch.randperm(count, generator=generator)[: max(1, count // 30)]
    words[:, 0], words[:, 1] = _WORD, _ALL
    words[few, 0] = -_WORD
    block = draft.block(0)
    for name in draft.checkpoint.spec.block.halves[0].part.writers:
        if name in block:
            block[name][..., :4] = 0
    router = block[routers[0]]
    router.zero_()
    first = draft.checkpoint.spec.block.halves[1].part.chosen - 1
    if router.shape[-1] < first + 3:
        raise UnfitError("too few experts")
    router[1, :first] = 1 + torch.arange(first).double()  # always chosen
    router[1, first + 2 :] = -1 - torch.arange(router.shape[-1] - first - 2).double()  # never
    router[0, first + 2], router[1, first + 2] = 2.0, 0.0  # chosen for most words
    if torch.rand((), generator=generator) < 0.5:
        words[few, 2:4] = 0
        router[2, first], router[3, first + 1] = 0.5, 0.5
    draft.put(0, block)
    norm = draft.checkpoint.reading_norms(0)[1]
    draft.values[f"{norm}.weight"].abs_().clamp_(min=0.1)
    ours = draft.store(work / "a", DTYPES[case.dtype])
    label = draft.spec.block.tensors[routers[0]][-1].label
    order = torch.arange(router.shape[-1])
    order[[first, first + 1]] = order[[first + 1, first]]
    for name in having(draft, label):
        axis = [index.label for index in draft.spec.block.tensors[name]].index(label)
        block[name] = block[name].index_select(axis, order)
    other = draft.copy()
    other.put(0, block)
    theirs = other.store(work / "b", DTYPES[case.dtype])
    inputs = draw(draft.checkpoint, 64, LENGTH, 0)
    one, two = (
        next(iter(run(d.view(DTYPES[case.dtype]), inputs).values())) for d in (draft, other)
    )
    if not (apart := float((one - two).norm() / one.norm())) > 1e-3:
        raise UnfitError(f"the outputs are apart by {apart:.1e} only")
    return Pair(
        ours, theirs, {"style": style, "base": seed, "words": len(few), "apart": apart},
        declared="the first of two experts that tie is chosen", measured=False,
    )  # fmt: skip
