"""The basis of a stream: which orthogonal matrix carries the rows of one file to another's."""

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor


def find_basis(
    ours: Float[Tensor, "t x"],
    theirs: Float[Tensor, "t x"],
    *,
    permutation: bool,
    rounding: float,
    fix_ones: bool,
    sizes: Float[Tensor, " t"] | None = None,
) -> Float[Tensor, "x x"] | None:
    """The orthogonal R for which ours · R is closest to theirs; None for the identity.

    The identity is taken where no other matrix is clearly better: a network that was trained on
    keeps its basis, though every row has changed.

    Args:
        ours: Rows in the first basis.
        theirs: The same rows in the second.
        permutation: Only permutations, with one sign for all.
        rounding: Unit roundoff of the stored numbers.
        fix_ones: The ones are orthogonal to all rows and go to themselves.
        sizes: Of the stored numbers that each row comes from; of the row itself if None.
    """
    # Rounding errs relative to what is stored, so rows count in units of it. Those that are far
    # smaller than most count no more than these: a row of zeros may be off by anything.
    sizes = theirs.norm(dim=1) if sizes is None else sizes
    usual = sizes[sizes > 0].median() if (sizes > 0).any() else sizes.new_ones(())
    weight = 1 / torch.maximum(sizes, 1e-3 * usual)
    ours, theirs = ours * weight[:, None], theirs * weight[:, None]
    size = theirs.norm()
    plain = (ours - theirs).norm()
    if plain <= 2 * rounding * size:
        return None
    if permutation:
        basis = _closest_permutation(ours, theirs)
    else:
        basis = closest_orthogonal(ours, theirs, rounding, fix_ones)
    return basis if (ours @ basis - theirs).norm() < 0.5 * plain else None


def closest_orthogonal(
    ours: Float[Tensor, "t x"], theirs: Float[Tensor, "t x"], rounding: float, fix_ones: bool
) -> Float[Tensor, "x x"]:
    """The orthogonal Procrustes problem; where the rows say nothing, as near to 1 as possible."""
    product = ours.T @ theirs
    if fix_ones:  # the rows have nothing along the ones, so this only says where they go
        product = product + product.norm() / len(product)
    u, s, vh = torch.linalg.svd(product)
    # s are squares. Noise in a direction is as large as the rows are in it, times the roundoff, so
    # a direction is known if its size, not its square, is above the roundoff.
    known = s > s[0] * max(16 * rounding**2, 1e-14)
    basis: Tensor = u[:, known] @ vh[known]
    if not known.all():
        rest, rest_h = u[:, ~known], vh[~known]
        a, _, bh = torch.linalg.svd(rest.T @ rest_h.T)
        basis = basis + rest @ (a @ bh) @ rest_h
    return basis


def _closest_permutation(
    ours: Float[Tensor, "t x"], theirs: Float[Tensor, "t x"]
) -> Float[Tensor, "x x"]:
    product = ours.T @ theirs
    basis = torch.zeros_like(product)
    best = -torch.inf
    for sign in (1.0, -1.0):
        rows, columns = linear_sum_assignment((sign * product).numpy(), maximize=True)
        gain = (sign * product)[rows, columns].sum().item()
        if gain > best:
            best, basis = gain, torch.zeros_like(product)
            basis[rows, columns] = sign
    return basis
