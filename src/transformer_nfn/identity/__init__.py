"""Same function or not: verdicts with certificates and witnesses."""

from transformer_nfn.identity.applying import apply_element, changes
from transformer_nfn.identity.canonical import seen
from transformer_nfn.identity.certificate import (
    Terms,
    load_certificate,
    read_terms,
    save_certificate,
)
from transformer_nfn.identity.confirmation import Agreement, confirm
from transformer_nfn.identity.element import NetElement
from transformer_nfn.identity.elementcheck import check_element
from transformer_nfn.identity.elementrules import ElementError
from transformer_nfn.identity.found import unit_roundoff
from transformer_nfn.identity.inspection import BlockHealth, Inspection, inspect_checkpoint
from transformer_nfn.identity.matching import match
from transformer_nfn.identity.parts import PARTS, Part, symmetry_parts
from transformer_nfn.identity.picture import plot_heads
from transformer_nfn.identity.running import ACTIVATIONS, frequencies, run
from transformer_nfn.identity.sampling import random_net_element
from transformer_nfn.identity.settling import settled
from transformer_nfn.identity.verdict import Answer, Verdict, same
from transformer_nfn.identity.verification import Verification, verify
from transformer_nfn.identity.witness import Witness, find_witness

__all__ = [
    "ACTIVATIONS",
    "PARTS",
    "Agreement",
    "Answer",
    "BlockHealth",
    "ElementError",
    "Inspection",
    "NetElement",
    "Part",
    "Terms",
    "Verdict",
    "Verification",
    "Witness",
    "apply_element",
    "changes",
    "check_element",
    "confirm",
    "find_witness",
    "frequencies",
    "inspect_checkpoint",
    "load_certificate",
    "match",
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
]
