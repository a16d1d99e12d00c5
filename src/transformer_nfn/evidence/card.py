"""The lines of a model card that name what a model was made of."""

import json

from transformer_nfn.evidence.claim import Bond, Claim


def card_lines(claim: Claim) -> str:
    """YAML for the head of a README.md, with what it rests on as comments.

    Where nothing says that the other came first, there is no `base_model`, only comments.
    """
    digests = ", ".join(f"{digest[:16]}…" for digest in claim.other.digests.files.values())
    # A comment ends with its line, and a name may hold a line break.
    words = [
        f"{claim.says}",
        f"compared with {claim.other.name}, SHA-256 {digests}",
        f"transformer-nfn {claim.version}, {claim.date}",
    ]
    lines = [f"# {json.dumps(text, ensure_ascii=False)[1:-1]}" for text in words]
    if claim.bond is Bond.ANCESTOR:
        lines = [f"base_model: {json.dumps(claim.other.name, ensure_ascii=False)}", *lines]
    return "\n".join(lines) + "\n"
