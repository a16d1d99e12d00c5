"""What was measured of two models, in forms that other tools read."""

from transformer_nfn.evidence.bom import bill_of_materials
from transformer_nfn.evidence.card import card_lines
from transformer_nfn.evidence.claim import Bond, Claim, Subject, name_of

__all__ = ["Bond", "Claim", "Subject", "bill_of_materials", "card_lines", "name_of"]
