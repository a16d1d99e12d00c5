"""Is a certificate true? Checked from outside: nothing in it is trusted."""

from dataclasses import dataclass, replace
from pathlib import Path

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, Digests
from transformer_nfn.identity.comparing.judge import judge
from transformer_nfn.identity.comparing.names import unit_name
from transformer_nfn.identity.comparing.outcome import Match
from transformer_nfn.identity.elements.certificate import load_certificate, read_terms
from transformer_nfn.identity.elements.readback import check_ties
from transformer_nfn.identity.matching.networks import match
from transformer_nfn.identity.running.confirmation import AGREE, Agreement, confirm
from transformer_nfn.identity.running.inputs import fresh_seed
from transformer_nfn.identity.settings import compare_settings
from transformer_nfn.identity.verdict import different_shapes, not_comparable, not_runnable


@dataclass(frozen=True)
class Verification:
    """Whether a certificate holds, and why not.

    Attributes:
        holds: True, False, or None where the weights agree but the functions cannot be run.
        reason: In a sentence; the first one, if it does not hold.
        residual: The largest distance that its element leaves of a head, a neuron or a row, in
            multiples of what rounding does to it.
        agreement: How far the outputs are apart.
        seed: Of the inputs on which both were run.
    """

    holds: bool | None
    reason: str
    residual: float | None = None
    agreement: Agreement | None = None
    seed: int | None = None


def verify(
    certificate: str | Path, ours: Checkpoint, theirs: Checkpoint, *, seed: int | None = None
) -> Verification:
    """Check that a certificate carries one checkpoint to another, and that both compute the same.

    In this order: the digests are those of these files and settings; everything in it is a symmetry
    of the first; it carries the first to the second, up to rounding; both give the same outputs, up
    to rounding, on inputs that nobody could know before.

    Args:
        certificate: As `save_certificate` writes it.
        ours: The first checkpoint.
        theirs: The second.
        seed: Of the inputs; from fresh entropy if None.

    Raises:
        CheckpointError: If a file cannot be read, or is no certificate.
    """
    terms = read_terms(certificate)
    for stated, checkpoint in ((terms.first, ours), (terms.second, theirs)):
        if difference := stated.difference(Digests.of(checkpoint)):
            return Verification(False, f"it was not found for {checkpoint.path}: {difference}")
    settings = compare_settings(ours, theirs)
    if differ := (*settings.differ, *settings.unknown):
        return Verification(False, f"the settings differ in {', '.join(differ)[:200]}")
    for checkpoint in (ours, theirs):
        if (unfit := not_comparable(checkpoint)) is not None:
            return Verification(False, unfit.reason)
    if shapes := different_shapes(ours, theirs):
        return Verification(False, shapes)
    try:
        element, _ = load_certificate(certificate, ours)
        norm = ours.settings.norm if element.unseen is None else "rms"
        if theirs.settings.norm != norm:
            return Verification(
                False,
                f"it makes a network with {norm} norms, the second has {theirs.settings.norm}",
            )
        # How well bases can be known is a matter of the two files, not of the certificate.
        for number in range(ours.blocks):
            check_ties(ours, element, number)
        known = match(ours, theirs).known
        left = judge(ours, theirs, element, known)
        return _judged(left, ours, theirs, fresh_seed() if seed is None else seed)
    except (CheckpointError, ValueError, RuntimeError) as error:
        return Verification(False, str(error)[:300])


def _judged(left: Match, ours: Checkpoint, theirs: Checkpoint, seed: int) -> Verification:
    found = Verification(
        True, "it carries the first to the second, and both compute the same", left.residual
    )
    if left.failures:
        place, residual = left.failures[0]
        return replace(
            found,
            holds=False,
            reason=f"what it makes of the first is not {unit_name(theirs, place, residual)}: off "
            f"by {residual.value:.3g} times what rounding does, more than {residual.limit:.3g}",
        )
    if error := not_runnable(ours, theirs):
        return replace(found, holds=None, reason=f"it carries the first to the second, but {error}")
    agreement = confirm(ours, theirs, seed=seed, words=left.words)
    found = replace(found, agreement=agreement, seed=seed)
    if agreement.holds:
        return found
    return replace(
        found,
        holds=False,
        reason=f"the outputs differ by {agreement.ratio:.3g} times what rounding does, more than "
        f"{AGREE:.3g}, or on one input by {agreement.ratio_on_one:.3g} times",
    )
