"""Same function or not: verdicts with certificates and witnesses."""

from transformer_nfn.identity.applying import apply_element
from transformer_nfn.identity.bodies import compare_bodies
from transformer_nfn.identity.causes.apart import moved_tensors
from transformer_nfn.identity.causes.finding import Cause, find_cause
from transformer_nfn.identity.comparing.rounding import unit_roundoff
from transformer_nfn.identity.elements.acting import canonical_block
from transformer_nfn.identity.elements.applying import changes
from transformer_nfn.identity.elements.canonical import seen
from transformer_nfn.identity.elements.certificate import (
    Terms,
    load_certificate,
    read_terms,
    save_certificate,
)
from transformer_nfn.identity.elements.check import check_element
from transformer_nfn.identity.elements.digits import last_digit
from transformer_nfn.identity.elements.element import NetElement
from transformer_nfn.identity.elements.parts import PARTS, Part, symmetry_parts
from transformer_nfn.identity.elements.rules import ElementError
from transformer_nfn.identity.elements.sampling import random_net_element
from transformer_nfn.identity.elements.settling import settled
from transformer_nfn.identity.inspection import BlockHealth, Inspection, inspect_checkpoint
from transformer_nfn.identity.matching.networks import match
from transformer_nfn.identity.picture import plot_heads
from transformer_nfn.identity.running.confirmation import Agreement, confirm
from transformer_nfn.identity.running.function import run
from transformer_nfn.identity.running.inputs import (
    SourceAndTarget,
    draw_inputs,
    fresh_seed,
    parts_of,
)
from transformer_nfn.identity.running.jumps import without_jumps
from transformer_nfn.identity.running.saying import Choice, Saying, what_both_say
from transformer_nfn.identity.running.witness import Witness, find_witness
from transformer_nfn.identity.verdict import Answer, Verdict, same
from transformer_nfn.identity.verification import Verification, verify

__all__ = [
    "PARTS",
    "Agreement",
    "Answer",
    "BlockHealth",
    "Cause",
    "Choice",
    "ElementError",
    "Inspection",
    "NetElement",
    "Part",
    "Saying",
    "SourceAndTarget",
    "Terms",
    "Verdict",
    "Verification",
    "Witness",
    "apply_element",
    "canonical_block",
    "changes",
    "check_element",
    "compare_bodies",
    "confirm",
    "draw_inputs",
    "find_cause",
    "find_witness",
    "fresh_seed",
    "inspect_checkpoint",
    "last_digit",
    "load_certificate",
    "match",
    "moved_tensors",
    "parts_of",
    "plot_heads",
    "random_net_element",
    "read_terms",
    "run",
    "same",
    "save_certificate",
    "seen",
    "settled",
    "symmetry_parts",
    "unit_roundoff",
    "verify",
    "what_both_say",
    "without_jumps",
]
