"""The families we know, and which of them a file is."""

from collections.abc import Collection

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families.bert import BERT
from transformer_nfn.checkpoints.families.gpt2 import GPT2
from transformer_nfn.checkpoints.families.llama import LLAMA
from transformer_nfn.checkpoints.families.vit import VIT
from transformer_nfn.checkpoints.families.zoo import ZOO_PAPER, ZOO_RESIDUAL
from transformer_nfn.checkpoints.family import Family

FAMILIES = {family.name: family for family in (GPT2, BERT, VIT, LLAMA, ZOO_RESIDUAL, ZOO_PAPER)}


def recognise(names: Collection[str], where: str) -> tuple[Family, str]:
    """The family and prefix of a file, by the names of its tensors.

    Raises:
        CheckpointError: If it is none we know.
    """
    for family in FAMILIES.values():
        for prefix in family.prefixes:
            if prefix + family.probe in names:
                return family, prefix
    some = ", ".join(sorted(names)[:3])
    raise CheckpointError(
        f"{where} is of no family we know ({', '.join(FAMILIES)}); its tensors are called "
        f"{some[:200]}, …"
    )
