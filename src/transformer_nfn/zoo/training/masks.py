"""Cheap dropout masks, each net's from its own generator.

Drawing a Bernoulli number for every activation costs as much as a matmul. Here a pool of mask rows
is made once for each rate, and a token's mask is one row of it, chosen at random: one random number
for D activations, and a gather that reads and writes whole rows. In each column of the pool the
same number of entries is dropped, so every activation is dropped with exactly the pool's rate (the
rate rounded to 1/4096), and what is kept is scaled by one over the share that is kept.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

POOL = 4096  # rows


def mask_pool(rate: float, width: int) -> Float[Tensor, "pool x"]:
    """The pool of one rate, the same wherever it is made."""
    dropped = round(rate * POOL)
    generator = torch.Generator().manual_seed(dropped)
    order = torch.rand(POOL, width, generator=generator, dtype=torch.float64).argsort(dim=0)
    return (order >= dropped).float() * (POOL / (POOL - dropped))


class Masks:
    """Masks for n nets with a rate and a seed each; `layers` masks for `rows` tokens in a draw."""

    def __init__(
        self,
        rates: Sequence[float],
        seeds: Sequence[int],
        *,
        layers: int,
        rows: int,
        width: int,
        like: Float[Tensor, "..."],
    ) -> None:
        distinct = sorted(set(rates))
        self.pool = torch.cat([mask_pool(rate, width) for rate in distinct]).to(like)
        self._first = torch.tensor([POOL * distinct.index(rate) for rate in rates])
        self._generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.choice = torch.empty(len(rates), layers, rows, dtype=torch.int64)
        self._masks: dict[int, Tensor] = {}

    def draw(self) -> None:
        """Choose new masks for all tokens."""
        for choice, generator in zip(self.choice, self._generators, strict=True):
            torch.randint(POOL, choice.shape, generator=generator, out=choice)
        self.choice.add_(self._first[:, None, None])

    def part(self, first: int, stop: int) -> Float[Tensor, "n layers rows x"]:
        """The masks chosen for some of the tokens; they stand where the last ones stood."""
        choice = self.choice[:, :, first:stop]
        masks = self._masks.get(stop - first)
        if masks is None:
            masks = self.pool.new_empty(*choice.shape, self.pool.shape[1])
            self._masks[stop - first] = masks
        chosen = choice.flatten().to(self.pool.device)
        torch.index_select(self.pool, 0, chosen, out=masks.flatten(0, 2))
        return masks
