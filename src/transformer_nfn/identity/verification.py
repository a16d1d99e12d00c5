"""Is a certificate true? Checked from outside: nothing in it is trusted."""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, Digests, UnreadableError
from transformer_nfn.identity.carrying import Carried, carried
from transformer_nfn.identity.certificate import load_certificate, read_terms
from transformer_nfn.identity.running import check_runnable
from transformer_nfn.identity.verdict import different_settings, different_shapes
from transformer_nfn.identity.witness import BEYOND, Witness, find_witness


@dataclass(frozen=True)
class Verification:
    """Whether a certificate holds, and why not.

    Attributes:
        holds: True, False, or None where the weights agree but the functions cannot be run.
        reason: In a sentence; the first one, if it does not hold.
        carried: How near it carries the first file to the second.
        witness: The inputs on which both were run.
        seed: Of these inputs.
    """

    holds: bool | None
    reason: str
    carried: Carried | None = None
    witness: Witness | None = None
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
        seed: Of the inputs; from the system's entropy if None.

    Raises:
        CheckpointError: If a file cannot be read, or is no certificate.
    """
    terms = read_terms(certificate)
    for stated, checkpoint in ((terms.first, ours), (terms.second, theirs)):
        if difference := stated.difference(Digests.of(checkpoint)):
            return Verification(False, f"it was not found for {checkpoint.path}: {difference}")
    if settings := different_settings(ours.settings, theirs.settings):
        return Verification(False, f"the settings differ in {', '.join(settings)}")
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
        near = carried(ours, theirs, element)
    except CheckpointError as error:
        return Verification(False, str(error))
    found = Verification(
        True, "it carries the first to the second, and both compute the same", near
    )
    if not near.within:
        return replace(
            found,
            holds=False,
            reason=f"what it makes of the first is not {near.where}: off by {near.units:.3g} times "
            f"what rounding does, more than {near.limit:.3g}",
        )
    return _run(found, ours, theirs, secrets.randbelow(2**31) if seed is None else seed)


def _run(found: Verification, ours: Checkpoint, theirs: Checkpoint, seed: int) -> Verification:
    try:
        for checkpoint in (ours, theirs):
            check_runnable(checkpoint)
        witness = find_witness(ours, theirs, seed=seed)
    except (CheckpointError, RuntimeError) as error:  # numbers may be finite and their products not
        if isinstance(error, UnreadableError):
            raise
        reason = f"it carries the first to the second, but they were not run: {str(error)[:200]}"
        return replace(found, holds=None, reason=reason)
    found = replace(found, witness=witness, seed=seed)
    if not witness.beyond_rounding:
        return found
    return replace(
        found,
        holds=False,
        reason=f"the outputs differ by {witness.ratio:.3g} times what rounding does, more than "
        f"{BEYOND:.3g}, on inputs of seed {seed}",
    )
