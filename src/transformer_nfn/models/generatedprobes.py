"""Inputs that a deep linear network makes of learned codes."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn


class GeneratedProbes(nn.Module):
    """Sequences as linear images of learned codes, the same matrices for all of them.

    After ProbeGen (Kahana, Horwitz, Shuval and Hoshen, "Deep Linear Probe Generators for Weight
    Space Learning", ICLR 2025), written from the paper. Nothing stands between the matrices, so
    together they are one matrix; but as several they are trained in another way, and what one
    probe learns moves all others. The paper's generators of images are convolutions; sequences
    have none of that structure, so these are full matrices, without biases.

    Args:
        shape: Probes, tokens in each, and numbers in a token.
        widths: Of a code, and of the layers between code and probe.
        generator: The source of initial parameters.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        widths: Sequence[int],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self._shape = shape
        probes, tokens, inputs = shape
        self.codes = nn.Parameter(torch.randn(probes, widths[0], generator=generator))
        # The first probes have deviation 1, however many layers make them: as free ones do.
        self.layers = nn.ParameterList(
            torch.randn(before, after, generator=generator) * before**-0.5
            for before, after in pairwise([*widths, tokens * inputs])
        )

    def forward(self) -> Float[Tensor, "s t p"]:
        """All probes."""
        probes: Tensor = self.codes
        for layer in self.layers:
            probes = probes @ layer
        return probes.reshape(self._shape)
