"""The lines of a model card that name what a model was made of."""

import json

from transformer_nfn.evidence.claim import Bond, Claim


def card_lines(claim: Claim) -> str:
    """YAML for the head of a README.md, with what it rests on as comments.

    Where nothing says that the other came first, there is no `base_model`, only comments.
    """
    words = [
        claim.says,
        *(
            f"{model.name} has SHA-256 {', '.join(model.digests.files.values())}"
            for model in (claim.subject, claim.other)
        ),
        f"transformer-nfn {claim.version}, {claim.date}",
    ]
    # A comment ends with its line, and names may hold line breaks of any script: ASCII has none.
    lines = [f"# {json.dumps(text)[1:-1]}" for text in words]
    if claim.bond is Bond.ANCESTOR:
        lines = [f"base_model: {json.dumps(claim.other.name)}", *lines]
    return "\n".join(lines) + "\n"
