"""Are two checkpoints the same function?"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import zip_longest

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, Settings
from transformer_nfn.identity.element import NetElement
from transformer_nfn.identity.found import Match
from transformer_nfn.identity.matching import element_of, match
from transformer_nfn.identity.running import check_runnable
from transformer_nfn.identity.witness import BEYOND, Witness, find_faint_witness, find_witness

_CHUNK = 2**22
_SEEDS = 3
#: Tokens of an input where settings differ: positions tell far tokens apart, not near ones.
_FAR = 512


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
        residual: The largest relative distance that the element leaves, head by head and neuron by
            neuron.
        margin: That as a part of what rounding explains.
        condition: The largest condition number of its matrices.
        where: The first tensor that differs.
        witness: An input on which the functions differ.
        distances: For each block the squared distances of all pairs of heads.
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


def same(
    ours: Checkpoint, theirs: Checkpoint, progress: Callable[[int], None] = lambda _: None
) -> Verdict:
    """Decide whether two checkpoints are the same function, and by which symmetry.

    Only a certificate says "equivalent", and only a witness says "different".

    Args:
        ours: The first.
        theirs: The second.
        progress: Called with the number of blocks that were compared.
    """
    settings = different_settings(ours.settings, theirs.settings)
    if not settings and _same_reading(ours, theirs) and (found := _same_numbers(ours, theirs)):
        return found
    for checkpoint in (ours, theirs):
        if name := _not_finite(checkpoint):
            return Verdict(
                Answer.UNDECIDED,
                f"{checkpoint.path} has NaN or infinite numbers in {name}",
                where=name,
            )
    if shapes := different_shapes(ours, theirs):
        return _different_inputs(ours, theirs, shapes)
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
        if not matched.failures:
            return _equivalent(matched, ours, theirs)
    try:
        return _with_witness(ours, theirs, settings, matched)
    except (ValueError, RuntimeError) as error:
        if isinstance(error, CheckpointError):
            raise
        return _overflow(error)


def _overflow(error: Exception) -> Verdict:
    """Numbers may be finite and their products not."""
    return Verdict(
        Answer.UNDECIDED,
        f"the numbers are too large or too small to compute with: {str(error)[:200]}",
    )


def _same_reading(ours: Checkpoint, theirs: Checkpoint) -> bool:
    """Whether the same tensors mean the same: the norm, and which heads there are."""
    return ours.settings.norm == theirs.settings.norm and (
        (ours.heads, ours.tied_decoder) == (theirs.heads, theirs.tied_decoder)
    )


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


def _with_witness(
    ours: Checkpoint, theirs: Checkpoint, settings: list[str], found: Match | None
) -> Verdict:
    """Not equivalent as far as we see; different only if an input shows it."""
    if found is not None:
        place, residual = found.failures[0]
        where = place if residual.tensor == place else f"{place}{residual.tensor}"
        unit = "" if residual.unit is None else f", unit {residual.unit}"
        reason = f"no symmetry explains {where}{unit}: off by {residual.value:.2g}"
        tokens, positions = _suspects(found, theirs)
        distances = tuple(found.distances)
    else:
        where = "config: " + ", ".join(settings)
        reason, tokens, distances = f"the settings differ in {', '.join(settings)}", (), ()
        positions = _FAR
    try:
        for checkpoint in (ours, theirs):
            check_runnable(checkpoint)
    except CheckpointError as error:
        return Verdict(Answer.UNDECIDED, f"{reason}; {error}", where=where, distances=distances)
    witness = _search(ours, theirs, found, tokens, positions)
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
        reason=f"{reason}, but on {_SEEDS} draws of inputs the outputs differ by at most "
        f"{witness.ratio:.1f} times what rounding does (less than {BEYOND:.0f})",
    )


def _search(
    ours: Checkpoint,
    theirs: Checkpoint,
    found: Match | None,
    tokens: tuple[int, ...],
    positions: int,
) -> Witness:
    """The plain search first; where it finds nothing, along what the suspected weights do."""
    for seed in range(_SEEDS):
        witness = find_witness(ours, theirs, seed=seed, tokens=tokens, positions=positions)
        if witness.beyond_rounding:
            return witness
        if found is not None and found.repaired:
            faint = find_faint_witness(ours, theirs, found.repaired, seed=seed)
            if faint.beyond_rounding:
                return faint
    return witness


def _suspects(found: Match, theirs: Checkpoint) -> tuple[tuple[int, ...], int]:
    """Words whose embedding or output differs, and how far positions do."""
    words = next(iter(theirs.writers), None)
    heads = {head.weight for head in theirs.heads.values()}
    units = [(place, r.unit) for place, r in found.failures if r.unit is not None]
    return (
        tuple(unit for place, unit in units if place == words or place in heads),
        max(
            [unit + 1 for place, unit in units if "position" in place or "wpe" in place], default=0
        ),
    )


def different_settings(ours: Settings, theirs: Settings) -> list[str]:
    """What changes the function of the same tensors. Tying and the norm are matched, not here."""
    aliases = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}
    names = ("heads", "groups", "eps", "causal", "rope", "sizes")
    found = [name for name in names if getattr(ours, name) != getattr(theirs, name)]
    one, two = dict(ours.flags), dict(theirs.flags)
    found += [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
    first, second = (aliases.get(s.activation, s.activation) for s in (ours, theirs))
    return found if first == second else [*found, "activation"]


def different_shapes(ours: Checkpoint, theirs: Checkpoint) -> str | None:
    """What keeps two checkpoints from being compared tensor by tensor, in words."""
    if ours.family is not theirs.family:
        return f"one is of the family {ours.family.name}, the other {theirs.family.name}"
    if ours.spec.sizes != theirs.spec.sizes or ours.blocks != theirs.blocks:
        return f"{ours.blocks} blocks of {ours.spec}, and {theirs.blocks} of {theirs.spec}"
    for part in ("writers", "heads"):
        one, two = (_shapes(checkpoint, part) for checkpoint in (ours, theirs))
        for (name, shape), (_, other) in zip_longest(
            sorted(one.items()), sorted(two.items()), fillvalue=("nothing", ())
        ):
            if shape != other or set(one) != set(two):
                return f"{part} {sorted(one)} and {sorted(two)}: {name} {shape} against {other}"
    others = [{n.removeprefix(c.prefix) for n in c.others} for c in (ours, theirs)]
    extra = (others[0] ^ others[1]) - {
        "cls.predictions.decoder.weight",
        "cls.predictions.decoder.bias",
    }
    return f"only one has {sorted(extra)[0]}" if extra else None


def _shapes(checkpoint: Checkpoint, part: str) -> dict[str, tuple[int, ...]]:
    if part == "writers":
        names = {name: name for name in checkpoint.writers}
    else:
        names = {name: head.weight for name, head in checkpoint.heads.items()}
    return {
        name.removeprefix(checkpoint.prefix): checkpoint.files.entry(of).shape
        for name, of in names.items()
    }


def _different_inputs(ours: Checkpoint, theirs: Checkpoint, why: str) -> Verdict:
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
        witness = find_witness(ours, theirs)
    except (CheckpointError, KeyError, RuntimeError, IndexError) as error:
        return Verdict(Answer.UNDECIDED, f"{why}; no common input could be run: {str(error)[:200]}")
    answer = Answer.DIFFERENT if witness.beyond_rounding else Answer.UNDECIDED
    return Verdict(answer, why, where="shapes", witness=witness)


def _same_numbers(ours: Checkpoint, theirs: Checkpoint) -> Verdict | None:
    one, two = ours.files, theirs.files
    if set(one) != set(two):
        return None
    if any(
        (one.entry(name).dtype, one.entry(name).shape)
        != (two.entry(name).dtype, two.entry(name).shape)
        for name in one
    ):
        return None
    if len(one.shards) == len(two.shards) and all(
        a.start == b.start and a.entries == b.entries and a.metadata == b.metadata
        for (_, a), (_, b) in zip(one.shards, two.shards, strict=True)
    ):
        files = [(a, b) for (a, _), (b, _) in zip(one.shards, two.shards, strict=True)]
        if all(_equal_files(a, b) for a, b in files):
            return Verdict(Answer.SAME_BYTES, "the files are the same, byte for byte")
    for name in one:
        rows = max(1, _CHUNK // max(1, one.entry(name).shape[-1] if one.entry(name).shape else 1))
        if not one.entry(name).shape:
            if not _equal_bits(one.read(name), two.read(name)):
                return None
            continue
        for a, b in zip(one.chunks(name, rows), two.chunks(name, rows), strict=True):
            if not _equal_bits(a, b):
                return None
    return Verdict(Answer.SAME_TENSORS, "all tensors are the same, bit for bit; the files are not")


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def _equal_files(a: object, b: object) -> bool:
    with open(a, "rb") as one, open(b, "rb") as two:  # type: ignore[call-overload]
        while True:
            first, second = one.read(_CHUNK), two.read(_CHUNK)
            if first != second:
                return False
            if not first:
                return True


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
