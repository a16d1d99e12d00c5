"""A bill of materials of CycloneDX 1.6 with one model, and where it may come from.

It is plain JSON, so it is written without the library; tests validate it by the published schema.
"""

from typing import Any
from uuid import uuid4

from transformer_nfn.evidence.claim import Bond, Claim, Subject

_TOOL = "transformer-nfn"
#: How an ancestor or variant stands in a pedigree.
_PEDIGREE = {Bond.ANCESTOR: "ancestors", Bond.VARIANT: "variants"}


def bill_of_materials(claim: Claim) -> dict[str, Any]:
    """The bill as JSON data.

    Args:
        claim: What was measured. It stands in the properties of the model, of which both models'
            digests are part; an ancestor stands in its pedigree only where the claim says so.
    """
    model = _component(claim.subject, "subject")
    pedigree: dict[str, Any] = {"notes": claim.says}
    if (place := _PEDIGREE.get(claim.bond)) is not None:
        pedigree = {place: [_component(claim.other, "other")], **pedigree}
    properties = {
        "says": claim.says,
        "compared-with": claim.other.name,
        **{f"compared-with-sha256:{name}": digest for name, digest in _digests(claim.other)},
        **claim.facts,
    }
    model["pedigree"] = pedigree
    model["properties"] = [
        {"name": f"{_TOOL}:{name}", "value": value} for name, value in properties.items()
    ]
    tool = {"type": "application", "name": _TOOL, "version": claim.version}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid4()}",
        "version": 1,
        "metadata": {"timestamp": claim.date, "tools": {"components": [tool]}},
        "components": [model],
    }


def _component(subject: Subject, ref: str) -> dict[str, Any]:
    """A model and its files, each with its digest."""
    files = [
        {
            "type": "file",
            "bom-ref": f"{ref}/{name}",
            "name": name,
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }
        for name, digest in _digests(subject)
    ]
    return {
        "type": "machine-learning-model",
        "bom-ref": ref,
        "name": subject.name,
        "modelCard": {"modelParameters": {"modelArchitecture": subject.family}},
        "components": files,
    }


def _digests(subject: Subject) -> list[tuple[str, str]]:
    config = subject.digests.config
    return [*subject.digests.files.items(), *([("config.json", config)] if config else [])]
