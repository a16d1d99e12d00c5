"""Two whole checkpoints: the element between them, found from the embeddings on, block by block."""

from collections.abc import Callable

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity.comparing.judge import (
    BlockPair,
    compare_block,
    compare_readers,
    compare_writers,
)
from transformer_nfn.identity.comparing.outcome import Match
from transformer_nfn.identity.comparing.rounding import unit_roundoff
from transformer_nfn.identity.comparing.variance import with_spread
from transformer_nfn.identity.elements.canonical import Rules, gauge_of
from transformer_nfn.identity.elements.element import MEMORY, NetElement, last_stream, streams
from transformer_nfn.identity.elements.settling import settled
from transformer_nfn.identity.matching.blocks import match_block
from transformer_nfn.identity.matching.outside import (
    find_first_basis,
    find_hidden,
    fixes_ones,
    outside_gauge,
    unseen_direction,
)


def match(
    ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] = lambda _: None
) -> Match:
    """Find the element that carries one checkpoint to another of the same shapes.

    It stops after the first block that does not fit, since all that follows would be judged in a
    basis that is not theirs.
    """
    found = Match()
    rounding = unit_roundoff(ours, theirs)
    if ours.encoder is not None and theirs.encoder is not None:
        found.include(match(ours.encoder, theirs.encoder), MEMORY)
    if found.failures:
        return found
    if ours.shares_words:
        if MEMORY in found.bases:
            found.bases[0] = found.bases[MEMORY]
        if MEMORY in found.known:
            found.known[0] = found.known[MEMORY]
    else:
        found.learn(0, find_first_basis(ours, theirs, rounding))
    found.unseen = unseen_direction(ours, theirs, found.bases.get(0))
    compare_writers(ours, theirs, found)
    for number in range(ours.blocks):
        _match_one(ours, theirs, number, rounding, found)
        progress(number + 1)
        if found.failures:
            return found
    if ours.hidden_head:
        found.hidden = find_hidden(ours, theirs, found.bases.get(last_stream(ours)))
    compare_readers(ours, theirs, found)
    return found


def element_of(found: Match, ours: Checkpoint, theirs: Checkpoint) -> NetElement:
    """The element that a match without failures is, with the second checkpoint's gauges."""
    one, two, inner = ours.encoder, theirs.encoder, None
    if found.encoder is not None and one is not None and two is not None:
        inner = element_of(found.encoder, one, two)
    element = NetElement(
        tuple(found.blocks),
        {stream: basis for stream, basis in found.bases.items() if stream != MEMORY},
        tuple(found.gauges),
        outside_gauge(ours, theirs, found.unseen),
        found.hidden,
        found.unseen,
        inner,
    )
    return settled(element, ours)


def _match_one(
    ours: Checkpoint, theirs: Checkpoint, number: int, rounding: float, found: Match
) -> None:
    places = streams(ours, number)
    pair = BlockPair.of(ours, theirs, number, found.unseen)
    off_ours, off_theirs = pair.variances
    known = tuple(found.known.get(stream) for stream in places)
    result = match_block(
        pair.ours,
        pair.theirs,
        tuple(found.bases.get(stream) for stream in places),
        known=ours.skip,
        variances=(off_ours, with_spread(off_theirs, pair.theirs, known)),
        rounding=rounding,
        fix_ones=fixes_ones(ours, theirs),
    )
    if not ours.skip:
        for stream, basis in zip(places[1:], result.bases, strict=True):
            found.learn(stream, basis)
    found.blocks.append(result.element)
    found.gauges.append(gauge_of(pair.raw, pair.norms, Rules.of(theirs), found.unseen))
    found.distances.append(result.distances)
    found.condition = max(found.condition, result.condition)
    for loose in result.loose.values():
        found.by_products.append(f"{pair.place}: head {loose[0]}")
    compare_block(pair, result.element, places, found, result.loose)
