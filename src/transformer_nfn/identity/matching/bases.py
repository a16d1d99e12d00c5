"""The basis of a stream: which orthogonal matrix carries the rows of one file to another's."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.identity.comparing.basis import Basis, known_basis
from transformer_nfn.identity.matching.assignment import linear_sum_assignment
from transformer_nfn.space import StreamKind


def find_basis(
    ours: Float[Tensor, "t x"],
    theirs: Float[Tensor, "t x"],
    *,
    kind: StreamKind = StreamKind.ORTHOGONAL,
    rounding: float,
    fix_ones: bool,
    sizes: Float[Tensor, " t"],
) -> Basis | None:
    """The orthogonal R for which ours · R is closest to theirs; None for the identity.

    The identity is taken where no other matrix is clearly better: a network that was trained on
    keeps its basis, though every row has changed.

    Args:
        ours: Rows in the first basis.
        theirs: The same rows in the second.
        kind: What the norms leave of a basis.
        rounding: Unit roundoff of the stored numbers.
        fix_ones: The ones are orthogonal to all rows and go to themselves.
        sizes: The root mean square of what rounding does to each row.
    """
    # Rounding errs relative to what is stored, so rows count in units of it. Those that are far
    # smaller than most count no more than these: a row of zeros may be off by anything.
    usual = sizes[sizes > 0].median() if (sizes > 0).any() else sizes.new_ones(())
    weight = 1 / torch.maximum(sizes, 1e-3 * usual)
    ours, theirs = ours * weight[:, None], theirs * weight[:, None]
    size = theirs.norm()
    plain = (ours - theirs).norm()
    if plain <= 2 * rounding * size:
        return None
    if kind is StreamKind.ORTHOGONAL:
        basis = closest_orthogonal(ours, theirs, fix_ones)
    elif kind is StreamKind.SIGNED:
        basis = _closest_signed(ours, theirs)
    else:
        signs = (1.0, -1.0) if kind is StreamKind.FLIPPED else (1.0,)
        basis = _closest_permutation(ours, theirs, signs)
    if not (ours @ basis - theirs).norm() < 0.5 * plain:
        return None
    if kind is not StreamKind.ORTHOGONAL:  # there is nothing between two of them
        none = theirs.new_zeros(len(basis), 0)
        return Basis(basis, none, none[:0])
    return known_basis(basis, theirs, torch.ones_like(sizes), fix_ones=fix_ones)


def closest_orthogonal(
    ours: Float[Tensor, "t x"], theirs: Float[Tensor, "t x"], fix_ones: bool
) -> Float[Tensor, "x x"]:
    """The orthogonal Procrustes problem; where the rows say nothing, as near to 1 as possible."""
    product = ours.T @ theirs
    if fix_ones:  # the rows have nothing along the ones, so this only says where they go
        product = product + product.norm() / len(product)
    u, s, vh = torch.linalg.svd(product)
    # Rows are in units of their rounding, of which each direction has an equal share: one is known
    # if the rows have more of it than that.
    known = s > max(4 * len(ours) / len(product), 1e-14 * s[0])
    basis: Tensor = u[:, known] @ vh[known]
    if not known.all():
        rest, rest_h = u[:, ~known], vh[~known]
        a, _, bh = torch.linalg.svd(rest.T @ rest_h.T)
        basis = basis + rest @ (a @ bh) @ rest_h
    return basis


def _closest_signed(
    ours: Float[Tensor, "t x"], theirs: Float[Tensor, "t x"]
) -> Float[Tensor, "x x"]:
    product = ours.T @ theirs
    rows, columns = linear_sum_assignment(product.abs().numpy(), maximize=True)
    basis = torch.zeros_like(product)
    basis[rows, columns] = torch.where(product[rows, columns] < 0, -1.0, 1.0).double()
    return basis


def _closest_permutation(
    ours: Float[Tensor, "t x"], theirs: Float[Tensor, "t x"], signs: tuple[float, ...]
) -> Float[Tensor, "x x"]:
    product = ours.T @ theirs
    basis = torch.zeros_like(product)
    best = -torch.inf
    for sign in signs:
        rows, columns = linear_sum_assignment((sign * product).numpy(), maximize=True)
        gain = (sign * product)[rows, columns].sum().item()
        if gain > best:
            best, basis = gain, torch.zeros_like(product)
            basis[rows, columns] = sign
    return basis
