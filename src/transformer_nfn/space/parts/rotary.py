"""Rotary positions: queries and keys turned by an angle that grows with the position."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
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
        part: How many of the coordinates turn, the first ones of each head; the others do not.
        interleaved: The coordinates 2j and 2j + 1 are a pair on disk, not j and j + width/2.
    """

    theta: float
    kind: str = "default"
    options: tuple[tuple[str, float | tuple[float, ...]], ...] = ()
    part: float = 1.0
    interleaved: bool = False

    def frequencies(self, width: int) -> Float[Tensor, " j"]:
        """The angle that each pair of coordinates turns by from one token to the next.

        Raises:
            UnknownFunctionError: For a kind that we do not know.
        """
        turning = self._turning(width)
        still = torch.zeros((width - turning) // 2, dtype=torch.float64)
        return torch.cat([self._frequencies(turning), still])

    def places(self, width: int) -> Int[Tensor, " k"] | None:
        """Where on disk the first and then the second of each pair stand, those that turn first.

        What does not turn is paired as well, by halves: a complex number for each pair is less
        than is possible there.
        """
        turning = self._turning(width)
        if turning == width and not self.interleaved:
            return None
        rest = torch.arange(turning, width).view(2, -1)
        pairs = torch.arange(turning).view((-1, 2) if self.interleaved else (2, -1))
        return torch.cat([pairs.T if self.interleaved else pairs, rest], dim=1).flatten()

    def _turning(self, width: int) -> int:
        turning = int(width * self.part)
        if turning % 2 or width % 2 or not 0 < turning <= width:
            raise UnknownFunctionError(
                f"{self.part} of {width} coordinates are no pairs that could turn"
            )
        return turning

    def _frequencies(self, width: int) -> Float[Tensor, " j"]:
        if "partial_rotary_factor" in dict(self.options):
            raise UnknownFunctionError(
                "rotary positions of only a part of the coordinates are not known of this model"
            )
        angle = self.theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
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
