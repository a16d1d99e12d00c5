"""`--bom` and `--card`: what was measured, for other tools."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_nfn.cli.early import EarlyError, check_writable
from transformer_nfn.cli.terminal import say

if TYPE_CHECKING:
    from transformer_nfn.checkpoints import Checkpoint
    from transformer_nfn.evidence import Bond

Bom = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.json", help="A bill of materials, CycloneDX 1.6, with what was measured."
    ),
]
Card = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The `base_model` lines of a model card, as YAML."),
]


def check_evidence(bom: Path | None, card: Path | None) -> None:
    """Complain of files that cannot be written before the work."""
    check_writable(bom, (".json",))
    check_writable(card, (".md", ".yaml", ".yml", ".txt"))
    for path in (bom, card):
        if path is not None and path.exists():
            raise EarlyError(f"{path} exists already; remove it, or choose another name")


def write_evidence(
    models: "tuple[Checkpoint, Checkpoint]",
    bond: "Bond",
    says: str,
    facts: Mapping[str, Any],
    bom: Path | None,
    card: Path | None,
) -> None:
    """Write what was measured.

    Args:
        models: The one that it is about, and the one it was compared with.
        bond: What the second may be to the first.
        says: The result in a sentence.
        facts: What the command says with `--json`; tables in it as JSON.
        bom: Where a bill of materials goes, if anywhere.
        card: Where lines of a model card go.
    """
    if bom is None and card is None:
        return
    from transformer_nfn import __version__
    from transformer_nfn.evidence import Claim, Subject, bill_of_materials, card_lines

    one, two = (Subject.of(model) for model in models)
    texts = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in facts.items()
        if value is not None
    }
    date = datetime.now(UTC).isoformat(timespec="seconds")
    claim = Claim(one, two, bond, says, texts, __version__, date)
    if bom is not None:
        bom.write_text(json.dumps(bill_of_materials(claim), indent=2) + "\n")
        say(f"wrote {bom}", err=True)
    if card is not None:
        card.write_text(card_lines(claim))
        say(f"wrote {card}", err=True)
