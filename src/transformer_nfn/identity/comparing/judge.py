"""Does an element carry one checkpoint to another? Every unit is judged, nothing is searched for.

Whoever found the element, and how, does not matter here: a certificate from elsewhere is judged in
the same way. Embeddings and heads are read in slices.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Head
from transformer_nfn.group import GroupElement
from transformer_nfn.identity.comparing.basis import Basis
from transformer_nfn.identity.comparing.coherence import DRAWS, Leaning, leaning_tensors
from transformer_nfn.identity.comparing.heads import Heads, sums_agree
from transformer_nfn.identity.comparing.losses import losses
from transformer_nfn.identity.comparing.outcome import Match
from transformer_nfn.identity.comparing.outside import ROWS, classifier, row_slices
from transformer_nfn.identity.comparing.residuals import Residual, judged, judged_units
from transformer_nfn.identity.comparing.rounding import jittered, spread
from transformer_nfn.identity.comparing.units import (
    NOTHING,
    Units,
    both,
    expected_product_squares,
    expected_squares,
    in_order_of,
    lone_constants,
    product_squares,
    squared_distances,
    with_units_of,
)
from transformer_nfn.identity.comparing.variance import block_variances, norm_variances, with_spread
from transformer_nfn.identity.elements.acting import canonical_block, folded_head, reading
from transformer_nfn.identity.elements.canonical import Bases, Norm, Rules, rotated, seen, undressed
from transformer_nfn.identity.elements.element import MEMORY, NetElement, last_stream, streams
from transformer_nfn.space import Kind, WeightBatch

#: From so many times its limit on a residual is a suspicion.
_SUSPICIOUS = 2.0
#: Words that both networks are run on whatever else is drawn: those whose rows changed by the
#: largest part of their size. A norm makes a whole token of a row that is almost nothing.
_WORDS = 64
#: The smallest rows among them, each the first of a sequence: padding is a row of zeros, and then
#: the next norm sees only what the first block adds to it.
_SMALLEST = 2
#: A constant may be so many times what rounding leaves of it, where the other file has none.
_MADE = 2.0


def judge(
    ours: Checkpoint,
    theirs: Checkpoint,
    element: NetElement,
    known: Mapping[int, Basis] = MappingProxyType({}),
) -> Match:
    """What an element leaves between two checkpoints, unit by unit.

    Args:
        ours: The first.
        theirs: The second.
        element: What is said to carry the first to the second.
        known: How well bases can be known from these two files, by stream.
    """
    found = Match(
        bases=dict(element.bases),
        known=dict(known),
        hidden=element.hidden,
        unseen=element.unseen,
    )
    one, two, inner = ours.encoder, theirs.encoder, element.encoder
    if one is not None and two is not None and inner is not None:
        found.include(judge(one, two, inner, _memory(known)), MEMORY)
    compare_writers(ours, theirs, found)
    for number, group in enumerate(element.blocks):
        pair = BlockPair.of(ours, theirs, number, element.unseen)
        compare_block(pair, group, streams(ours, number), found)
    compare_readers(ours, theirs, found)
    return found


def _memory(known: Mapping[int, Basis]) -> dict[int, Basis]:
    """How well the basis of the encoder is known, as its own."""
    return {0: known[MEMORY]} if MEMORY in known else {}


def compare_writers(ours: Checkpoint, theirs: Checkpoint, found: Match) -> None:
    """All that is written into the first stream from outside the blocks, and norms after sums."""
    basis, known = found.bases.get(0), found.known.get(0)
    pairs = [(ours, theirs), *_rounded(ours, theirs)]
    for name, other in zip(ours.writers, theirs.writers, strict=True):
        rows = _Rows()
        slices = [
            zip(row_slices(one, name), row_slices(two, other), strict=True) for one, two in pairs
        ]
        for ((a, off_a), (b, off_b)), *again in zip(*slices, strict=True):
            moved, fixed = _turned(seen(ours, a), basis), seen(theirs, b)
            roundings = [
                _turned(seen(ours, one), _drawn(basis, known, draw))
                - moved
                - (seen(theirs, two) - fixed)
                for draw, ((one, _), (two, _)) in enumerate(again)
            ]
            rows.add(moved - fixed, off_a + off_b + _unknown(known, fixed), roundings)
            rows.weigh(moved, fixed)
        rows.note(found, name, ours.D)
        if other == theirs.words:
            found.words = rows.suspects(_WORDS)
    for name in ours.stream_norms:
        _compare_norm(ours, theirs, name, found)


@dataclass(frozen=True)
class BlockPair:
    """A block of each of two checkpoints, canonical, and how far rounding leaves their numbers.

    Attributes:
        number: Which block.
        place: What stands before the names of the first one's tensors.
        ours: The first, in its own coordinates.
        theirs: The second.
        variances: Of both.
        raw: The second as it is stored.
        norms: Those that the second reads.
        exact_zeros: The variances of the first (0) or second (1), where a stored 0 is exact.
        rounded: For the number of a draw both blocks less what they are when their files are
            rounded once more, at random.
    """

    number: int
    place: str
    ours: WeightBatch
    theirs: WeightBatch
    variances: tuple[WeightBatch, WeightBatch]
    raw: WeightBatch
    norms: tuple[Norm, ...]
    exact_zeros: Callable[[int], WeightBatch]
    rounded: Callable[[int], tuple[WeightBatch, WeightBatch]]

    @staticmethod
    def of(ours: Checkpoint, theirs: Checkpoint, number: int, unseen: Tensor | None) -> "BlockPair":
        """Read them."""
        raw, norms = theirs.block(number), reading(theirs, number)
        own = canonical_block(ours, number)
        other = undressed(raw, norms, Rules.of(theirs), unseen)

        def rounded(draw: int) -> tuple[WeightBatch, WeightBatch]:
            one, two = _rounded(ours, theirs)[draw]
            again = undressed(two.block(number), reading(two, number), Rules.of(two), unseen)
            return minus(canonical_block(one, number), own), minus(again, other)

        return BlockPair(
            number,
            ours.block_name(number),
            own,
            other,
            (block_variances(ours, number), block_variances(theirs, number)),
            raw,
            norms,
            lambda side: block_variances((ours, theirs)[side], number, exact_zeros=True),
            rounded,
        )


def compare_block(
    pair: BlockPair,
    element: GroupElement,
    places: tuple[int, ...],
    found: Match,
    loose: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> None:
    """All units of a block.

    Args:
        pair: Both blocks.
        element: What is said to carry the first to the second.
        places: The streams, as `element.streams` has them.
        found: Where residuals are noted.
        loose: Heads that the element explains only by their products, by their axis.
    """
    bases = tuple(found.bases.get(stream) for stream in places)
    known = tuple(found.known.get(stream) for stream in places)
    moved = element(rotated(pair.ours, bases))
    expected = both(
        in_order_of(expected_squares(pair.ours, pair.variances[0]), element, bases),
        expected_squares(pair.theirs, with_spread(pair.variances[1], pair.theirs, known)),
    )
    squares = squared_distances(moved, pair.theirs)
    for kind in _made_of_nothing(pair, moved):
        found.note(pair.place, Residual(kind, None, inf, 1.0))
    suspected: dict[str, Collection[int]] = {}
    for residual in judged_units(squares, expected, pair.theirs.spec):
        beyond = not residual.ratio <= 1
        if beyond and _shared_values(moved, pair.theirs, residual, expected, squares):
            found.by_products.append(f"{pair.place}: V O of heads that look alike")
            continue
        found.note(pair.place, residual)
        # Only what is far beyond rounding is worth a suspicion: a difference that is rounding
        # would point at itself.
        if residual.ratio > _SUSPICIOUS:
            units = residual.beyond or range(squares[residual.kind].numel())
            suspected.setdefault(residual.kind, units)
    if not found.failures:
        left = minus(moved, pair.theirs)
        roundings = [_rounding(pair, element, moved, bases, known, draw) for draw in range(DRAWS)]
        for residual in leaning_tensors(pair.theirs, left, roundings, loose):
            found.note(pair.place, residual)
    if suspected:
        found.repaired[pair.number] = with_units_of(pair.theirs, moved, suspected)


def _made_of_nothing(pair: BlockPair, moved: WeightBatch) -> list[str]:
    """Kinds of constants that one block has none of and the other has, however small.

    Rounding makes nothing of something small, and what is left where a bias cancels the shift of a
    norm; but something of a stored 0 it does not make. A token of zeros sees nothing else, and the
    norms that follow make a whole token of it.
    """
    found = []
    for kind, side in lone_constants(moved, pair.theirs).items():
        block = (pair.ours, pair.theirs)[side]
        left = expected_squares(block, pair.exact_zeros(side))[kind].sum()
        if squared_distances(block, minus(block, block))[kind].sum() > _MADE**2 * left:
            found.append(kind)
    return found


def _rounding(
    pair: BlockPair,
    element: GroupElement,
    moved: WeightBatch,
    bases: Bases,
    known: tuple[Basis | None, ...],
    draw: int,
) -> WeightBatch:
    """What rounding both files again, and not knowing the bases, leaves between two blocks."""
    one, two = pair.rounded(draw)
    drawn = tuple(_drawn(basis, how, draw) for basis, how in zip(bases, known, strict=True))
    again = element(rotated(plus(pair.ours, one), drawn))
    return minus(minus(again, moved), two)


def _drawn(basis: Tensor | None, known: Basis | None, draw: int) -> Tensor | None:
    """A basis as it might be as well, if it was found from weights."""
    return basis if known is None else known.drawn(draw)


def _unknown(known: Basis | None, rows: Tensor) -> Tensor:
    return rows.new_zeros(len(rows)) if known is None else known.spread(rows)


def plus(one: WeightBatch, two: WeightBatch) -> WeightBatch:
    """The sum of two blocks."""
    return WeightBatch(two.spec, {name: one[name] + two[name] for name in two.tensors})


def minus(one: WeightBatch, two: WeightBatch) -> WeightBatch:
    """The difference of two blocks."""
    return WeightBatch(two.spec, {name: one[name] - two[name] for name in two.tensors})


def _shared_values(
    ours: WeightBatch, theirs: WeightBatch, residual: Residual, expected: Units, squares: Units
) -> bool:
    """Whether V O differs only among heads that look at the same tokens, where its sum counts."""
    for part in theirs.spec.block.attentions:
        looking, carried = f"{part.query} {part.key}", f"{part.value} {part.output_weight}"
        if residual.kind in (carried, f"b{carried}") and looking in expected:
            break
    else:
        return False
    axes = theirs.spec.block.axes
    if any(axes[label].kind is Kind.FREE for label in theirs.spec.block.units[carried].labels):
        return False  # positions are added to the scores of each head in its own way
    a, b = Heads.of(ours, part), Heads.of(theirs, part)
    if residual.kind != carried:
        last = torch.zeros_like(b.V[:, :, :1])
        last[:, -1] = 1
        a, b = (replace(heads, V=heads.V * last) for heads in (a, b))
    looks = expected[looking].flatten(0, 1)
    looks = looks if looks.dim() == 1 else looks.sum(dim=1)  # of all pairs
    values = expected[residual.kind].flatten()
    apart = squares[residual.kind].flatten() > residual.limit**2 * values
    return all(
        sums_agree(a, b, head, looks, values, residual.limit)
        for head in torch.nonzero(apart).flatten().tolist()
    )


def _rounded(ours: Checkpoint, theirs: Checkpoint) -> list[tuple[Checkpoint, Checkpoint]]:
    """Both files rounded once more, at random, and not in the same way: else nothing is left."""
    return [
        (jittered(ours, seed=2 * draw), jittered(theirs, seed=2 * draw + 1))
        for draw in range(DRAWS)
    ]


def _turned(rows: Tensor, basis: Tensor | None) -> Tensor:
    return rows if basis is None else rows @ basis


class _Rows:
    """Differences of rows, and what rounding explains of them, gathered slice by slice."""

    def __init__(self) -> None:
        self._squares: list[Tensor] = []
        self._expected: list[Tensor] = []
        self._sizes: list[Tensor] = []
        self._leaning = Leaning()

    def weigh(self, ours: Tensor, theirs: Tensor) -> None:
        """Note the sizes of the rows that were added, in the file where they are larger."""
        one, two = (rows.square().sum(dim=1) for rows in (ours, theirs))
        self._sizes.append(torch.maximum(one, two))
        # No rounding makes something of nothing: a norm would make a whole token of it.
        lone = (one <= NOTHING**2) != (two <= NOTHING**2)
        self._squares[-1] = torch.where(lone, torch.inf, self._squares[-1])

    def suspects(self, count: int) -> tuple[int, ...]:
        """The smallest rows, and those that changed by the largest part of their size."""
        sizes = torch.cat(self._sizes)
        smallest = sizes.argsort(stable=True)[:_SMALLEST].tolist()
        parts = torch.cat(self._squares) / sizes.clamp_min(1e-300)
        changed = parts.argsort(descending=True)[:count].tolist()
        return tuple(dict.fromkeys(smallest + changed))[:count]

    def add(self, difference: Tensor, expected: Tensor, roundings: Sequence[Tensor]) -> None:
        self._squares.append(difference.square().sum(dim=1))
        self._expected.append(expected)
        self._leaning.add(difference, roundings, expected)

    def note(self, found: Match, name: str, numbers: int) -> None:
        squares, expected = torch.cat(self._squares), torch.cat(self._expected)
        for residual in (*judged(name, squares, expected, numbers), *self._leaning.found(name)):
            found.note(name, residual)


def _note_numbers(found: Match, name: str, difference: Tensor, expected: Tensor) -> None:
    """Numbers that no symmetry mixes: each counts by itself."""
    for residual in judged(name, difference.square(), expected, 1):
        found.note(name, residual)


def _compare_norm(ours: Checkpoint, theirs: Checkpoint, name: str, found: Match) -> None:
    """After a sum a norm's scale and shift are its own: they move with the basis only."""
    basis = found.bases.get(0)
    other = theirs.prefix + name.removeprefix(ours.prefix)
    values = zip(ours.norm(name), theirs.norm(other), strict=True)
    offs = zip(norm_variances(ours, name), norm_variances(theirs, other), strict=True)
    for part, (value, theirs_value), (off, theirs_off) in zip(
        ("weight", "bias"), values, offs, strict=True
    ):
        if basis is not None:
            value = basis.square().T @ value if part == "weight" else value @ basis
            off = basis.square().T @ off
        _note_numbers(found, f"{name}.{part}", value - theirs_value, off + theirs_off)


def compare_readers(ours: Checkpoint, theirs: Checkpoint, found: Match) -> None:
    """Compare all that reads the last stream, and all that touches none.

    And what a loader may lose anywhere, unless they are found apart already.
    """
    if not found.failures:
        for place, residual in losses(ours, theirs):
            found.note(place, residual)
    if ours.hidden_head:
        _compare_classifier(ours, theirs, found)
    elif ours.last_norm and not ours.post_norm and ours.gives_hidden_states:
        _compare_norm(ours, theirs, ours.last_norm, found)
    for head, their_head in zip(ours.heads.values(), theirs.heads.values(), strict=True):
        _compare_head(ours, theirs, head, their_head, found)
    for name in ours.others:
        other_name = name
        if name not in theirs.files:
            other_name = theirs.prefix + name.removeprefix(ours.prefix)
        # A decoder may share its tensor with the embedding in the second file.
        other_name = theirs.tied_decoder.get(name, other_name)
        if other_name in theirs.files:
            _compare_plain(ours.files.read(name), theirs.files.read(other_name), name, found)
        else:
            found.note(name, Residual(name, None, float("inf"), 1.0))
    for own, of in ours.tied_decoder.items():
        if own in theirs.files:
            _compare_plain(ours.files.read(of), theirs.files.read(own), own, found)


def _compare_head(
    ours: Checkpoint, theirs: Checkpoint, head: Head, other: Head, found: Match
) -> None:
    place, unseen = last_stream(ours), found.unseen
    basis, known = found.bases.get(place), found.known.get(place)
    weights = _Rows()
    constants = []
    pairs = [(ours, theirs), *_rounded(ours, theirs)]
    slices = [
        zip(_folded_rows(one, head), _folded_rows(two, other), strict=True) for one, two in pairs
    ]
    for (one, two), *again in zip(*slices, strict=True):
        left = []
        for draw, (a, b) in enumerate([(one, two), *again]):
            rows = b.weight
            if unseen is not None:
                rows = rows - torch.outer(rows @ unseen, unseen) / ours.D
            turn = _drawn(basis, known, draw - 1) if draw else basis
            left.append(_turned(a.weight, turn) - rows)
        off = one.off_weight + two.off_weight + _unknown(known, two.weight)
        weights.add(left[0], off, [rows - left[0] for rows in left[1:]])
        constants.append((one.constant - two.constant, one.off_constant + two.off_constant))
    weights.note(found, other.weight, ours.D)
    differences, offs = map(torch.cat, zip(*constants, strict=True))
    _note_numbers(found, other.bias or other.weight, differences, offs)


@dataclass(frozen=True)
class _FoldedRows:
    """Rows of a head that read the plain normalised stream, and how far rounding leaves them."""

    weight: Tensor
    constant: Tensor
    off_weight: Tensor
    off_constant: Tensor


def _folded_rows(checkpoint: Checkpoint, head: Head) -> Iterator[_FoldedRows]:
    norm = scale, shift = checkpoint.norm(checkpoint.last_norm)
    off_scale, off_shift = norm_variances(checkpoint, checkpoint.last_norm)
    centred = checkpoint.settings.norm == "layer"
    biases = checkpoint.files.read(head.bias) if head.bias else None
    at = 0
    for stored in checkpoint.files.chunks(head.weight, ROWS):
        rows, off = stored.double(), spread(stored).square()
        bias = off_bias = torch.zeros(len(rows), dtype=torch.float64)
        if biases is not None:
            bias, off_bias = (
                part[at : at + len(rows)] for part in (biases.double(), spread(biases).square())
            )
        squares = rows.square()
        weight, constant = folded_head(rows, bias, norm, centred)
        yield _FoldedRows(
            weight,
            constant,
            off @ scale.square() + squares @ off_scale,
            off_bias + off @ shift.square() + squares @ off_shift,
        )
        at += len(rows)


def _compare_plain(a: Tensor, b: Tensor, name: str, found: Match) -> None:
    """Tensors that no symmetry moves: number by number."""
    if a.shape == b.shape and a.dtype.is_floating_point and a.numel():
        expected = spread(a).square() + spread(b).square()
        _note_numbers(found, name, a.double() - b.double(), expected)
    elif a.shape != b.shape or not torch.equal(a, b):
        found.note(name, Residual(name, None, float("inf"), 1.0))


def _compare_classifier(ours: Checkpoint, theirs: Checkpoint, found: Match) -> None:
    assert ours.hidden_head is not None
    first, _, _, last = ours.hidden_head
    two = classifier(theirs)
    one = reads, writes = classifier(ours, found.bases.get(last_stream(ours)))
    order, scale = found.hidden or (torch.arange(len(reads)), reads.new_ones(len(reads)))
    moved = reads[order] * scale[:, None, None], writes[order] / scale[:, None, None]
    expected = [
        expected_product_squares(net, _classifier_variances(checkpoint))
        for net, checkpoint in ((one, ours), (two, theirs))
    ]
    known = found.known.get(last_stream(ours))
    unknown = _unknown(known, two[0][:, : ours.D, 0]) * two[1].square().sum(dim=(1, 2))
    squares = product_squares(moved, two)
    for residual in judged(first, squares, expected[0][order] + expected[1] + unknown, ours.D):
        found.note(first, residual)
    _compare_plain(ours.files.read(last), theirs.files.read(last), last, found)


def _classifier_variances(checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    assert checkpoint.hidden_head is not None
    w1, b1, w2, _ = (spread(checkpoint.files.read(n)).square() for n in checkpoint.hidden_head)
    return torch.cat([w1, b1[None]]).T.unsqueeze(-1), w2.unsqueeze(-1)
