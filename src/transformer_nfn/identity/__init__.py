"""Same function or not: verdicts with certificates, fingerprints, copies in disguise."""

from transformer_nfn.identity.applying import apply_element, changes
from transformer_nfn.identity.certificate import (
    Terms,
    load_certificate,
    read_terms,
    save_certificate,
)
from transformer_nfn.identity.confirmation import Agreement, confirm
from transformer_nfn.identity.distances import (
    COPY,
    NEAR,
    Distance,
    Kinship,
    Stack,
    copy_limit,
    distance,
)
from transformer_nfn.identity.duplicates import Duplicates, Row, dedup, group_copies
from transformer_nfn.identity.element import NetElement
from transformer_nfn.identity.elementcheck import check_element
from transformer_nfn.identity.elementrules import ElementError
from transformer_nfn.identity.finding import find_checkpoints, fingerprints, natural
from transformer_nfn.identity.fingerprinting import WIDTH, Fingerprint, check_choice, fingerprint
from transformer_nfn.identity.forest import Edge, Forest
from transformer_nfn.identity.found import unit_roundoff
from transformer_nfn.identity.index import Index, Neighbour, Shelf
from transformer_nfn.identity.inspection import BlockHealth, Inspection, inspect_checkpoint
from transformer_nfn.identity.matching import match
from transformer_nfn.identity.parts import PARTS, Part, symmetry_parts
from transformer_nfn.identity.picture import plot_heads, plot_kin
from transformer_nfn.identity.probes import SEED
from transformer_nfn.identity.running import run
from transformer_nfn.identity.sampling import random_net_element
from transformer_nfn.identity.series import Audit, audit_series
from transformer_nfn.identity.settling import settled
from transformer_nfn.identity.verdict import Answer, Verdict, same
from transformer_nfn.identity.verification import Verification, verify
from transformer_nfn.identity.witness import Witness, find_witness

__all__ = [
    "COPY",
    "NEAR",
    "PARTS",
    "SEED",
    "WIDTH",
    "Agreement",
    "Answer",
    "Audit",
    "BlockHealth",
    "Distance",
    "Duplicates",
    "Edge",
    "ElementError",
    "Fingerprint",
    "Forest",
    "Index",
    "Inspection",
    "Kinship",
    "Neighbour",
    "NetElement",
    "Part",
    "Row",
    "Shelf",
    "Stack",
    "Terms",
    "Verdict",
    "Verification",
    "Witness",
    "apply_element",
    "audit_series",
    "changes",
    "check_choice",
    "check_element",
    "confirm",
    "copy_limit",
    "dedup",
    "distance",
    "find_checkpoints",
    "find_witness",
    "fingerprint",
    "fingerprints",
    "group_copies",
    "inspect_checkpoint",
    "load_certificate",
    "match",
    "natural",
    "plot_heads",
    "plot_kin",
    "random_net_element",
    "read_terms",
    "run",
    "same",
    "save_certificate",
    "settled",
    "symmetry_parts",
    "unit_roundoff",
    "verify",
]
