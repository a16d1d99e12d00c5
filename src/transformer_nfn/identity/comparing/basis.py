"""The basis of a stream, and how well it is known.

It is found from rows that were rounded, so it is known only so well, and all that is compared in it
is off by that much as well. How well follows from the rows: an angle between two directions in
which they have the sizes g_i and g_j, in units of their rounding, has the variance 1/(g_i + g_j).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: Off by more than this part of its size nothing is, however little is known of a basis.
_MOST = 0.1


@dataclass(frozen=True)
class Basis:
    """An orthogonal matrix, and how well it is known.

    Attributes:
        matrix: What rows are multiplied with from the right.
        ways: Directions in the second basis, one in each column.
        angles: The variance of the angle between each two of them.
    """

    matrix: Float[Tensor, "x x"]
    ways: Float[Tensor, "x p"]
    angles: Float[Tensor, "p p"]

    def spread(self, rows: Float[Tensor, "*u x"]) -> Float[Tensor, "*u"]:
        """The mean square of what is not known of the basis does to rows."""
        each = self.angles.sum(dim=1).clamp_max(_MOST**2)
        return (rows @ self.ways).square() @ each

    def drawn(self, seed: int) -> Float[Tensor, "x x"]:
        """The matrix as it might be as well."""
        generator = torch.Generator().manual_seed(seed)
        upper = torch.randn(self.angles.shape, generator=generator, dtype=self.angles.dtype).triu(1)
        turn = (upper - upper.T) * self.angles.clamp_max(_MOST**2 / len(self.angles)).sqrt()
        return self.matrix + self.matrix @ self.ways @ turn @ self.ways.T


def known_basis(
    matrix: Float[Tensor, "x x"],
    theirs: Float[Tensor, "t x"],
    sizes: Float[Tensor, " t"],
    *,
    fix_ones: bool,
) -> Basis:
    """How well a basis is known that was found from rows.

    Args:
        matrix: The basis.
        theirs: The rows in it.
        sizes: The root mean square of what rounding does to each.
        fix_ones: The ones are orthogonal to all rows and go to themselves.
    """
    D = len(matrix)
    weighted = theirs / sizes.clamp_min(1e-300).unsqueeze(1) * D**0.5
    weighted = weighted[sizes > 0]
    sums, ways = torch.linalg.eigh(weighted.T @ weighted)
    if fix_ones:  # they are the direction of which the rows have nothing
        sums, ways = sums[1:], ways[:, 1:]
    angles = 1 / (sums[:, None] + sums).clamp_min(1e-300)
    return Basis(matrix, ways, angles.fill_diagonal_(0.0))
