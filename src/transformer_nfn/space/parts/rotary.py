"""Rotary positions: queries and keys turned by an angle that grows with the position."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space.errors import UnknownFunctionError


@dataclass(frozen=True)
class Rope:
    """Base, and how long contexts change the frequencies.

    Attributes:
        theta: The base.
        kind: `default`, `linear`, `llama3`, …
        options: All else that the kind's frequencies come from, by name; also the longest context
            where the kind looks at it.
    """

    theta: float
    kind: str = "default"
    options: tuple[tuple[str, float | tuple[float, ...]], ...] = ()

    def frequencies(self, width: int) -> Float[Tensor, " j"]:
        """The angle that each pair of coordinates turns by from one token to the next.

        Raises:
            UnknownFunctionError: For a kind that we do not know.
        """
        angle = self.theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        if "partial_rotary_factor" in dict(self.options):
            raise UnknownFunctionError(
                "rotary positions of only a part of the coordinates are not known"
            )
        if self.kind == "default":
            return angle
        if self.kind == "linear":
            return angle / self._option("factor")
        if self.kind == "llama3":
            # Waves longer than the first context are slowed, short ones kept, those between mixed.
            length = self._option("original_max_position_embeddings") * angle / (2 * math.pi)
            low, high = self._option("low_freq_factor"), self._option("high_freq_factor")
            keep = ((length - low) / (high - low)).clamp(0, 1)
            return keep * angle + (1 - keep) * angle / self._option("factor")
        raise UnknownFunctionError(f"rotary positions of kind {self.kind!r:.40} are not known")

    def _option(self, name: str) -> float:
        value = dict(self.options).get(name)
        if not isinstance(value, float):
            raise UnknownFunctionError(f"rotary positions of kind {self.kind} need a number {name}")
        return value


def turned(x: Float[Tensor, "... t k"], angles: Float[Tensor, " j"]) -> Float[Tensor, "... t k"]:
    """The pair (j, j + D_k/2) of token t turned by t times its angle."""
    phase = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * angles  # t j
    re, im = x.chunk(2, dim=-1)
    cos, sin = phase.cos().to(x.dtype), phase.sin().to(x.dtype)
    return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)
