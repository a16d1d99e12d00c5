"""Are two checkpoints the same function?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity.bytewise import Sameness, same_numbers
from transformer_nfn.identity.comparing.names import unit_name
from transformer_nfn.identity.comparing.outcome import Match
from transformer_nfn.identity.comparing.residuals import Residual
from transformer_nfn.identity.elements.element import NetElement
from transformer_nfn.identity.elements.readback import check_ties
from transformer_nfn.identity.elements.rules import ElementError, stranger
from transformer_nfn.identity.matching.networks import element_of, match
from transformer_nfn.identity.running.confirmation import Agreement, confirm
from transformer_nfn.identity.running.function import check_runnable
from transformer_nfn.identity.running.inputs import fresh_seed
from transformer_nfn.identity.running.witness import (
    BEYOND,
    BEYOND_ON_ONE,
    Witness,
    find_faint_witness,
    find_witness,
)
from transformer_nfn.identity.settings import compare_settings
from transformer_nfn.space import Positions

_CHUNK = 2**22
#: Draws of inputs among which a witness is looked for.
_DRAWS = 3
#: Tokens of an input where settings differ: positions tell far tokens apart, not near ones.
_FAR = 512
#: A residual that is no number of roundings.
_BEYOND_MEASURE = 1e100


class Answer(Enum):
    """What can be said of two checkpoints."""

    SAME_BYTES = "identical bytes"
    SAME_TENSORS = "same tensors"
    EQUIVALENT = "equivalent"
    BY_PRODUCTS = "equivalent by products"
    DIFFERENT = "different"
    UNDECIDED = "not decided"

    @property
    def same_function(self) -> bool:
        """Whether they compute the same."""
        return self not in (Answer.DIFFERENT, Answer.UNDECIDED)


@dataclass(frozen=True)
class Verdict:
    """The answer and what it rests on.

    Attributes:
        answer: The answer.
        reason: In a sentence.
        element: What carries the first to the second, if they are equivalent.
        residual: The largest distance that the element leaves of a head, a neuron or a row, in
            multiples of what rounding does to it.
        margin: The largest of them as a part of its limit.
        condition: The largest condition number of its matrices.
        where: The first tensor that differs.
        witness: An input on which the functions differ.
        distances: For each block the squared distances of all pairs of heads.
        agreement: How far the outputs are apart where both were run and no symmetry was missing.
        seed: All inputs come from it.
        unknown_settings: Keys of both configs whose meaning is not known; they have the
            same values, so they decide nothing.
    """

    answer: Answer
    reason: str
    element: NetElement | None = None
    residual: float | None = None
    margin: float | None = None
    condition: float | None = None
    where: str | None = None
    witness: Witness | None = None
    distances: tuple[Tensor, ...] = ()
    agreement: Agreement | None = None
    seed: int | None = None
    unknown_settings: tuple[str, ...] = ()


#: Why two configs that differ in a key decide nothing.
_UNKNOWN = "and what that does is not known"
_KNOWN_TO_MATTER = {
    "dtype": "and a loader that obeys one of them rounds the stored numbers",
    "architectures": "and each class reads heads of its own",
}

_SAME = {
    Sameness.BYTES: Verdict(Answer.SAME_BYTES, "the files are the same, byte for byte"),
    Sameness.TENSORS: Verdict(
        Answer.SAME_TENSORS, "all tensors are the same, bit for bit; the files are not"
    ),
}


def same(
    ours: Checkpoint,
    theirs: Checkpoint,
    progress: Callable[[int], None] = lambda _: None,
    *,
    seed: int | None = None,
    search: bool = True,
) -> Verdict:
    """Decide whether two checkpoints are the same function, and by which symmetry.

    "Equivalent" needs a symmetry that leaves nothing but rounding, and that both say the same when
    they are run; "different" needs an input on which they do not.

    Args:
        ours: The first.
        theirs: The second.
        progress: Called with the number of blocks that were compared.
        seed: Of the inputs on which both are run; from fresh entropy if None, so that nobody can
            make files that agree on just these.
        search: Whether to look for an input on which they differ, where weights do. Without one
            they are not decided.
    """
    seed = fresh_seed() if seed is None else seed
    compared = compare_settings(ours, theirs)
    if compared.unknown:
        first, *others = compared.unknown
        why = _KNOWN_TO_MATTER.get(first, _UNKNOWN) if not others else _UNKNOWN
        verdict = Verdict(
            Answer.UNDECIDED,
            f"the configs differ in {_named(compared.unknown)}, {why}",
            where=f"config: {_named(compared.unknown)}",
        )
    else:
        verdict = _same(ours, theirs, list(compared.differ), progress, seed, search)
    return replace(verdict, unknown_settings=compared.shared, seed=seed)


def _named(keys: tuple[str, ...]) -> str:
    """Keys of a stranger's config, short and printable."""
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return ", ".join(f"{key[:60]!r}" for key in keys[:3]) + more


def _same(
    ours: Checkpoint,
    theirs: Checkpoint,
    settings: list[str],
    progress: Callable[[int], None],
    seed: int,
    search: bool,
) -> Verdict:
    what = None
    if not settings and _same_reading(ours, theirs):
        what = same_numbers(ours, theirs)
    if what is Sameness.BYTES:
        return _SAME[what]
    for checkpoint in (ours, theirs):
        if missing := checkpoint.made_up:
            return Verdict(Answer.UNDECIDED, _made_up(checkpoint, missing), where=missing)
    if what is not None:
        return _SAME[what]
    for checkpoint in (ours, theirs):
        if (unfit := not_comparable(checkpoint)) is not None:
            return Verdict(Answer.UNDECIDED, unfit.reason, where=unfit.where)
    if shapes := different_shapes(ours, theirs):
        return _different_inputs(ours, theirs, shapes, seed)
    if (ours.settings.norm, theirs.settings.norm) == ("rms", "layer"):
        return Verdict(
            Answer.UNDECIDED, "the first has RMSNorm, the second LayerNorm; give them in turn"
        )
    matched = None
    if not settings:
        try:
            matched = match(ours, theirs, progress)
        except (ValueError, RuntimeError) as error:  # of assignments and factorisations
            if isinstance(error, CheckpointError):
                raise
            return _overflow(error)
    try:
        if matched is not None and not matched.failures:
            verdict = _equivalent(matched, ours, theirs)
            if verdict.element is not None and (tie := _tie(ours, verdict.element)):
                return replace(verdict, answer=Answer.UNDECIDED, element=None, reason=tie)
            return _confirmed(verdict, ours, theirs, matched, seed)
        return _with_witness(ours, theirs, settings, matched, seed, search)
    except (ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        return _overflow(error)


class NotComparable(NamedTuple):
    """Why nothing can be said of a checkpoint, and the tensor that keeps one from it."""

    reason: str
    where: str


def not_comparable(checkpoint: Checkpoint) -> NotComparable | None:
    """What a checkpoint has, or has not, that keeps its function from being known."""
    path = checkpoint.path
    if missing := checkpoint.made_up:
        return NotComparable(_made_up(checkpoint, missing), missing)
    if checkpoint.unknown:
        reason = f"{path} has {stranger(checkpoint)}; remove it, or declare what it does"
        return NotComparable(reason, checkpoint.unknown[0])
    if name := _not_finite(checkpoint):
        return NotComparable(f"{path} has NaN or infinite numbers in {name}", name)
    return None


def _made_up(checkpoint: Checkpoint, missing: str) -> str:
    return f"{checkpoint.path} has no {missing}, and a loader makes it up at random"


def _overflow(error: Exception) -> Verdict:
    """Numbers may be finite and their products not."""
    return Verdict(
        Answer.UNDECIDED,
        f"the numbers are too large or too small to compute with: {str(error)[:200]}",
    )


def _same_reading(ours: Checkpoint, theirs: Checkpoint) -> bool:
    """Whether the same tensors mean the same: the norm, and which outputs there are."""
    one, two = (
        (c.settings.norm, c.heads, c.tied_decoder, c.gives_hidden_states, c.architecture)
        for c in (ours, theirs)
    )
    return one == two


def _equivalent(found: Match, ours: Checkpoint, theirs: Checkpoint) -> Verdict:
    verdict = Verdict(
        Answer.EQUIVALENT,
        "a change of coordinates carries the first to the second",
        residual=found.residual,
        margin=found.worst,
        condition=found.condition,
        distances=tuple(found.distances),
    )
    if not found.by_products:
        return replace(verdict, element=element_of(found, ours, theirs))
    return replace(
        verdict,
        answer=Answer.BY_PRODUCTS,
        reason=f"all products agree, but no unique matrices carry one to the other: "
        f"{found.by_products[0]}; a head without full rank, or equal heads",
    )


def _tie(ours: Checkpoint, element: NetElement) -> str | None:
    """Why experts may not change their order as an element asks for, if so."""
    try:
        for number in range(ours.blocks):
            check_ties(ours, element, number)
    except ElementError as error:
        return str(error)
    return None


def _confirmed(
    verdict: Verdict, ours: Checkpoint, theirs: Checkpoint, found: Match, seed: int
) -> Verdict:
    """An equivalence of weights stands only if both networks say the same when they are run."""
    if error := not_runnable(ours, theirs):
        return replace(
            verdict, answer=Answer.UNDECIDED, element=None, reason=f"{verdict.reason}, but {error}"
        )
    agreement = confirm(ours, theirs, seed=seed, words=found.words)
    verdict = replace(verdict, agreement=agreement)
    if agreement.holds:
        return verdict
    if agreement.blurred is not None:
        reason = f"{agreement.blurred}, so that they cannot be compared"
        return replace(verdict, answer=Answer.UNDECIDED, element=None, reason=reason)
    reason = (
        f"all weights agree to rounding, but on {agreement.inputs} inputs the outputs are apart by "
        f"{agreement.ratio:.1f} times what rounding does, on one by {agreement.ratio_on_one:.1f}"
    )
    witness = find_witness(ours, theirs, seed=seed)
    refuted = agreement.refuted and witness.beyond_rounding
    return replace(
        verdict,
        answer=Answer.DIFFERENT if refuted else Answer.UNDECIDED,
        element=None,
        reason=reason,
        witness=witness,
    )


def not_runnable(*checkpoints: Checkpoint) -> str | None:
    """Why one of them cannot be run, if so."""
    try:
        for checkpoint in checkpoints:
            check_runnable(checkpoint)
    except CheckpointError as error:
        return str(error)
    return None


def _with_witness(
    ours: Checkpoint,
    theirs: Checkpoint,
    settings: list[str],
    found: Match | None,
    seed: int,
    search: bool,
) -> Verdict:
    """Not equivalent as far as we see; different only if an input shows it."""
    if found is not None:
        place, residual = found.failures[0]
        where = unit_name(theirs, place, residual)
        reason = f"no symmetry explains {where}: {_how_far(residual)}"
        tokens, positions = _suspects(found, theirs)
        distances = tuple(found.distances)
    else:
        where = "config: " + ", ".join(settings)
        reason, tokens, distances = f"the settings differ in {', '.join(settings)}", (), ()
        positions = _FAR
    if error := not_runnable(ours, theirs):
        return Verdict(Answer.UNDECIDED, f"{reason}; {error}", where=where, distances=distances)
    if not search:
        reason = f"{reason}; no input that shows it was looked for"
        return Verdict(Answer.UNDECIDED, reason, where=where, distances=distances)
    witness = _search(ours, theirs, found, tokens, positions, seed)
    verdict = Verdict(
        Answer.DIFFERENT,
        reason,
        residual=found.residual if found else None,
        margin=found.worst if found else None,
        where=where,
        witness=witness,
        distances=distances,
    )
    if witness.beyond_rounding:
        return verdict
    return replace(
        verdict,
        answer=Answer.UNDECIDED,
        reason=f"{reason}, but on {_DRAWS} draws of inputs the outputs differ by at most "
        f"{witness.overall:.1f} times what rounding does, on one by {witness.ratio:.1f} "
        f"({BEYOND:.0f} and {BEYOND_ON_ONE:.0f} would be a difference)",
    )


def _how_far(residual: Residual) -> str:
    if residual.why is not None:
        return residual.why
    if residual.value > _BEYOND_MEASURE:
        return "it is 0 in one of them and not in the other, which no rounding does"
    return (
        f"off by {residual.value:.2g} times what rounding does, {residual.limit:.2g} at most would "
        f"be rounding"
    )


def _search(
    ours: Checkpoint,
    theirs: Checkpoint,
    found: Match | None,
    tokens: tuple[int, ...],
    positions: int,
    seed: int,
) -> Witness:
    """The plain search first; where it finds nothing, along what the suspected weights do."""
    for draw in range(_DRAWS):
        witness = find_witness(ours, theirs, seed=seed + draw, tokens=tokens, positions=positions)
        if witness.beyond_rounding:
            return witness
        if found is not None and found.repaired:
            faint = find_faint_witness(ours, theirs, found.repaired, seed=seed + draw)
            if faint.beyond_rounding:
                return faint
    return witness


def _suspects(found: Match, theirs: Checkpoint) -> tuple[tuple[int, ...], int]:
    """Words whose embedding or output differs, and how far positions do."""
    heads = {head.weight for head in theirs.heads.values()}
    tables = [step for step in theirs.family.embeddings if isinstance(step, Positions)]
    positions = {theirs.name(name) for step in tables for name in step.tensors}
    units = [(place, r.unit) for place, r in found.failures if r.unit is not None]
    return (
        tuple(unit for place, unit in units if place == theirs.words or place in heads),
        max([unit + 1 for place, unit in units if place in positions], default=0),
    )


def different_shapes(ours: Checkpoint, theirs: Checkpoint) -> str | None:
    """What keeps two checkpoints from being compared tensor by tensor, in words."""
    if ours.family is not theirs.family:
        return f"one is of the family {ours.family.name}, the other {theirs.family.name}"
    if ours.spec.sizes != theirs.spec.sizes or ours.blocks != theirs.blocks:
        return f"{ours.blocks} blocks of {ours.spec}, and {theirs.blocks} of {theirs.spec}"
    if ours.gives_hidden_states != theirs.gives_hidden_states:
        return "only one gives hidden states"
    for part in ("writers", "heads"):
        one, two = (_shapes(checkpoint, part) for checkpoint in (ours, theirs))
        for which, alone in (
            ("first", sorted({*one} - {*two})),
            ("second", sorted({*two} - {*one})),
        ):
            if alone:
                return f"only the {which} has {alone[0]}"
        for name, shape in sorted(one.items()):
            if shape != two[name]:
                return f"{name} is {_sizes(shape)} in the first, {_sizes(two[name])} in the second"
    others = [{n.removeprefix(c.prefix) for n in c.others} for c in (ours, theirs)]
    predictor = ours.predictor
    decoder = {f"{predictor.decoder}.{part}" for part in ("weight", "bias")} if predictor else set()
    extra = (others[0] ^ others[1]) - decoder  # which may share its tensors
    if extra:
        return f"only one has {sorted(extra)[0]}"
    if ours.encoder is None or theirs.encoder is None:
        return None
    return different_shapes(ours.encoder, theirs.encoder)


def _sizes(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _shapes(checkpoint: Checkpoint, part: str) -> dict[str, tuple[int, ...]]:
    if part == "writers":
        names = {name: name for name in checkpoint.writers}
    else:
        names = {name: head.weight for name, head in checkpoint.heads.items()}
    return {
        name.removeprefix(checkpoint.prefix): checkpoint.files.entry(of).shape
        for name, of in names.items()
    }


def _different_inputs(ours: Checkpoint, theirs: Checkpoint, why: str, seed: int) -> Verdict:
    """Other shapes: other inputs or outputs are a difference; else an input must show it."""
    if ours.family is not theirs.family:
        return Verdict(Answer.UNDECIDED, f"{why}; functions of two families are not compared")
    one, two = (
        {name: shape[0] for name, shape in _shapes(checkpoint, "heads").items()}
        for checkpoint in (ours, theirs)
    )
    if one != two:
        return Verdict(Answer.UNDECIDED, f"{why}; they give different outputs", where="heads")
    try:
        for checkpoint in (ours, theirs):
            check_runnable(checkpoint)
        witness = find_witness(ours, theirs, seed=seed)
    except (CheckpointError, KeyError, RuntimeError, IndexError) as error:
        return Verdict(Answer.UNDECIDED, f"{why}; no common input could be run: {str(error)[:200]}")
    answer = Answer.DIFFERENT if witness.beyond_rounding else Answer.UNDECIDED
    return Verdict(answer, why, where="shapes", witness=witness)


def _not_finite(checkpoint: Checkpoint) -> str | None:
    """The first tensor with NaN or infinite numbers."""
    for name, entry in checkpoint.files.entries.items():
        if not entry.dtype.is_floating_point or not entry.shape:
            continue
        rows = max(1, _CHUNK // max(1, entry.shape[-1]))
        for chunk in checkpoint.files.chunks(name, rows):
            if not torch.isfinite(chunk).all():
                return name
    return None
