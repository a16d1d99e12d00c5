"""Two whole checkpoints: the element between them, found from the embeddings on, block by block."""

from collections.abc import Callable

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.acting import canonical_block, reading
from transformer_nfn.identity.blockmatch import BlockMatch, match_block
from transformer_nfn.identity.canonical import Rules, gauge_of, undressed
from transformer_nfn.identity.element import NetElement, streams
from transformer_nfn.identity.found import CONDITION, MOST, Match, plain_tolerance, unit_roundoff
from transformer_nfn.identity.heads import sums_agree
from transformer_nfn.identity.outermatch import (
    fixes_ones,
    match_readers,
    match_writers,
    outside_gauge,
)
from transformer_nfn.identity.residuals import Residual, magnitudes, repaired, residuals
from transformer_nfn.identity.settling import settled


def match(
    ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] = lambda _: None
) -> Match:
    """Find the element that carries one checkpoint to another of the same shapes.

    It stops after the first block that does not fit, since all that follows would be judged in a
    basis that is not theirs.
    """
    found = Match()
    rounding = unit_roundoff(ours, theirs)
    match_writers(ours, theirs, rounding, found)
    for number in range(ours.blocks):
        _match_one(ours, theirs, number, rounding, found)
        progress(number + 1)
        if found.failures:
            return found
    match_readers(ours, theirs, rounding, found)
    return found


def element_of(found: Match, ours: Checkpoint, theirs: Checkpoint) -> NetElement:
    """The element that a match without failures is, with the second checkpoint's gauges."""
    element = NetElement(
        tuple(found.blocks),
        found.bases,
        tuple(found.gauges),
        outside_gauge(ours, theirs, found.unseen),
        found.hidden,
        found.unseen,
    )
    return settled(element, ours)


def _match_one(
    ours: Checkpoint, theirs: Checkpoint, number: int, rounding: float, found: Match
) -> None:
    first, middle, last = streams(ours, number)
    bases = found.bases.get(first), found.bases.get(middle), found.bases.get(last)
    skip = ours.family.skip
    raw, norms, rules = theirs.block(number), reading(theirs, number), Rules.of(theirs)
    target = undressed(raw, norms, rules, found.unseen)
    result = match_block(
        canonical_block(ours, number),
        target,
        bases,
        known=skip,
        rounding=rounding,
        fix_ones=fixes_ones(ours, theirs),
    )
    if not skip:
        for stream, basis in zip((middle, last), result.bases, strict=True):
            if basis is not None:
                found.bases[stream] = basis
    found.blocks.append(result.element)
    found.gauges.append(gauge_of(raw, norms, rules, found.unseen))
    found.distances.append(result.distances)
    found.condition = max(found.condition, *(c.max().item() for c in result.conditions))
    limits = _tolerances(result, rounding)
    place = ours.block_name(number)
    wrong = []
    for residual in residuals(result.moved, target, magnitudes(raw, norms), limits):
        if not residual.ratio <= 1 and _products_agree(result, residual, rounding):
            found.by_products.append(f"{place}: {residual.tensor} of head {residual.unit}")
            continue
        found.note(place, residual)
        if not residual.ratio <= 1:
            wrong.append(residual)
    if wrong:
        found.repaired[number] = repaired(target, result.moved, wrong)


def _tolerances(result: BlockMatch, rounding: float) -> dict[str, Tensor | float]:
    plain = plain_tolerance(rounding)
    qk, vo = (
        (plain + rounding * CONDITION * c.nan_to_num(nan=torch.inf)).clamp_max(MOST)
        for c in result.conditions
    )
    return {"Q": qk, "K": qk, "V": vo, "O": vo, "": plain}


def _products_agree(result: BlockMatch, residual: Residual, rounding: float) -> bool:
    """Whether a head that no matrix explains still has the same Q Kᵀ and V O."""
    name = residual.tensor.removeprefix("b")
    if name not in ("Q", "K", "V", "O") or residual.tensor == "bO" or residual.unit is None:
        return False
    # Squares are differences of sums, so distances are known to the root of float64's rounding.
    limit = max(plain_tolerance(rounding), 3e-8)
    a, b = result.heads
    inner = b.Q.shape[1]
    heads = [
        head
        for unit in residual.beyond
        for head in ([unit] if name in "QO" else range(unit * inner, (unit + 1) * inner))
    ]
    forms = result.forms[0 if name in "QK" else 1].flatten()
    apart = [head for head in heads if not forms[head] <= limit]
    return not apart or (name in "VO" and all(sums_agree(a, b, head, limit) for head in apart))
