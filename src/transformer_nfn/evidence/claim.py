"""What is said of two models, by whom, and of which bytes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from transformer_nfn.checkpoints import Checkpoint, Digests


class Bond(Enum):
    """What one model may be to another."""

    ANCESTOR = "ancestor"
    VARIANT = "variant"
    NONE = "none"


@dataclass(frozen=True)
class Subject:
    """A model that something is said of.

    Attributes:
        name: What people call it: its folder or file, on the Hugging Face hub with its owner.
        family: What it is read as.
        digests: SHA-256 of its files.
    """

    name: str
    family: str
    digests: Digests

    @staticmethod
    def of(checkpoint: Checkpoint) -> "Subject":
        """All files are read once more."""
        return Subject(name_of(checkpoint.path), checkpoint.family.name, Digests.of(checkpoint))


def name_of(source: object) -> str:
    """What people call the model at a path or URL.

    Examples:
        >>> name_of("nets/tuned"), name_of("hf://owner/model/model.safetensors")
        ('tuned', 'owner/model')
    """
    scheme, found, rest = str(source).partition("://")
    if not found:
        return Path(str(source)).resolve().name
    parts = [part for part in rest.split("/") if part]
    return "/".join(parts[:2]) if scheme == "hf" else parts[-1]


@dataclass(frozen=True)
class Claim:
    """What was measured, no more.

    Attributes:
        subject: The model that it is about.
        other: What it was compared with.
        bond: What the other may be to it.
        says: The result in a sentence, which begins with "consistent with" or says what was not
            seen.
        facts: All figures, by name.
        version: Of this package.
        date: When, in UTC, as ISO 8601 has it.
    """

    subject: Subject
    other: Subject
    bond: Bond
    says: str
    facts: Mapping[str, str]
    version: str
    date: str
