"""A part and how it meets the stream: its norm, and whether what it writes is added."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.errors import DeclarationError
from transformer_nfn.space.functions import layer_norm, rms_norm
from transformer_nfn.space.parts.attention import Attention
from transformer_nfn.space.parts.cross import CrossAttention
from transformer_nfn.space.parts.experts import Experts
from transformer_nfn.space.parts.mlp import GatedMlp, Mlp
from transformer_nfn.space.parts.part import Part

#: Kinds of parts that a saved declaration may name.
PARTS: Mapping[str, type[Part]] = {
    kind.__name__: kind for kind in (Attention, CrossAttention, Mlp, GatedMlp, Experts)
}


class NormPlace(Enum):
    """Where the norm of a half stands."""

    BEFORE = "before the part"
    AFTER = "after the part"
    AFTER_SUM = "after the sum with the stream"


@dataclass(frozen=True)
class Half:
    """One step of a block: stream + part(norm(stream)), or where else the norm stands.

    Attributes:
        part: What it computes.
        norm: LayerNorm, which takes the mean away, or RMSNorm.
        place: Where the norm stands.
        skip: Whether what is written is added to the stream, or takes its place.
        multiplier: Of what is written, in the function only.
        raw: The part reads the stream as it is, with whatever scale and mean it has: the norm after
            the sum before it, which may not have been one the first time, cannot be folded into it.
    """

    part: Part
    norm: Literal["layer", "rms"]
    place: NormPlace = NormPlace.BEFORE
    skip: bool = True
    multiplier: float = 1.0
    raw: bool = False

    def __post_init__(self) -> None:
        if self.norm not in ("layer", "rms"):
            raise DeclarationError(f"the norm of a half is 'layer' or 'rms', not {self.norm!r:.60}")

    @property
    def centred(self) -> bool:
        """Whether the norm takes the mean of each token away."""
        return self.norm == "layer"

    def to_dict(self) -> dict[str, Any]:
        """As plain data: of the part all that its tables come from, where it is not the default."""
        given = {
            field.name: getattr(self.part, field.name)
            for field in fields(self.part)  # type: ignore[arg-type]
            if not field.metadata and getattr(self.part, field.name) != field.default
        }
        kind = type(self.part).__name__
        return {
            "part": {"kind": kind, **given},
            "norm": self.norm,
            "place": self.place.value,
            "skip": self.skip,
            **({"raw": True} if self.raw else {}),
        }

    @staticmethod
    def from_dict(data: Any) -> "Half":
        """The inverse of `to_dict`.

        Raises:
            DeclarationError: If it is none.
        """
        try:
            given = dict(data["part"])
            part = PARTS[given.pop("kind")](**given)
            half = Half(
                part,
                data["norm"],
                NormPlace(data["place"]),
                data["skip"],
                raw=data.get("raw") is True,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DeclarationError(f"{data!r:.200} is no half of a block: {error}") from None
        if type(half.skip) is not bool:
            raise DeclarationError(f"{data!r:.200} is no half of a block")
        return half

    def __call__(
        self,
        w: Mapping[str, Tensor],
        stream: Float[Tensor, "n *s t x"],
        eps: float,
        number: int = 0,
    ) -> Float[Tensor, "n *s t x"]:
        """The stream after it; norms have no affine part, which is folded into what follows."""
        norm = layer_norm if self.centred else rms_norm
        reads_norm = self.place is NormPlace.BEFORE and not self.raw
        before = norm(stream, eps) if reads_norm else stream
        written = self.multiplier * self.part(w, before, number)
        if self.place is NormPlace.AFTER:
            written = norm(written, eps)
        stream = stream + written if self.skip else written
        return norm(stream, eps) if self.place is NormPlace.AFTER_SUM else stream
