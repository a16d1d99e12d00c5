"""Heads of one block against those of another: which is which, and the matrices between them.

The paper's theorem: two attentions are the same function exactly if their heads can be paired so
that Q Kᵀ and V O agree, given distinct Q Kᵀ of full rank.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_nfn.identity.comparing.heads import Heads, form_distances
from transformer_nfn.identity.comparing.units import as_complex
from transformer_nfn.identity.matching.assignment import linear_sum_assignment


def match_heads(
    a: Heads, b: Heads, *, outputs: bool
) -> tuple[Int[Tensor, " g"], Int[Tensor, "g m"], Float[Tensor, "g m G M"]]:
    """The pairing with the smallest distance.

    Returns:
        For each group of b its group of a; for each group of a the order of its heads; and the
        distances of all pairs.
    """
    qk, vo = form_distances(a, b, outputs=outputs)
    cost = qk + vo
    count, inner = cost.shape[:2]
    if inner == 1:
        _, mine = linear_sum_assignment(cost[:, 0, :, 0].T.numpy())
        return torch.from_numpy(mine), torch.zeros(count, 1, dtype=torch.long), cost
    total = torch.zeros(count, count, dtype=cost.dtype)
    orders = torch.zeros(count, count, inner, dtype=torch.long)
    for i in range(count):
        for j in range(count):
            block = cost[i, :, j]  # m M
            rows, columns = linear_sum_assignment(block.T.numpy())
            total[i, j] = block[columns, rows].sum()
            orders[i, j] = torch.from_numpy(columns)
    _, mine = linear_sum_assignment(total.T.numpy())
    groups = torch.from_numpy(mine)
    inside = torch.zeros(count, inner, dtype=torch.long)
    inside[groups] = orders[groups, torch.arange(count)]
    return groups, inside, cost


def between(
    P: Float[Tensor, "g p k"],
    P2: Float[Tensor, "g p k"],
    R: Float[Tensor, "g r k"],
    R2: Float[Tensor, "g r k"],
) -> Float[Tensor, "g k k"]:
    """The matrices M for which P M is closest to P2 and R M⁻ᵀ to R2, both counted relatively.

    Least squares on the first pair, then Newton steps on both: with M (1 + X) the equations are
    PᵀP X + X RᵀR = PᵀΔP - ΔRᵀR, each side in its own units, solved in the eigenbases of both.
    """
    M: Tensor = torch.linalg.lstsq(P, P2, driver="gelsd").solution
    one = 1 / P2.square().sum(dim=(1, 2), keepdim=True).clamp_min(1e-300)
    two = 1 / R2.square().sum(dim=(1, 2), keepdim=True).clamp_min(1e-300)
    for _ in range(3):
        M = _invertible(M)
        back = _inverse(M)
        p, r = P @ M, R @ back.mT
        if not (torch.isfinite(p).all() and torch.isfinite(r).all()):
            return _invertible(M)
        left, u = torch.linalg.eigh(one * (p.mT @ p))
        right, w = torch.linalg.eigh(two * (r.mT @ r))
        wanted = one * (p.mT @ (P2 - p)) - two * ((R2 - r).mT @ r)
        scale = left.unsqueeze(-1) + right.unsqueeze(-2)
        step = u @ ((u.mT @ wanted @ w) / scale.clamp_min(1e-300)) @ w.mT
        size = step.norm(dim=(1, 2), keepdim=True)
        M = M + M @ (step / size.clamp_min(1.0))
    return _invertible(M)


def between_pairs(
    Q: Float[Tensor, "g p k"],
    Q2: Float[Tensor, "g p k"],
    K: Float[Tensor, "g r k"],
    K2: Float[Tensor, "g r k"],
) -> Float[Tensor, "g j 2"]:
    """The same under RoPE: a complex number for each pair of coordinates."""
    q, q2, k, k2 = (as_complex(tensor) for tensor in (Q, Q2, K, K2))
    forth = (q.conj() * q2).sum(1) / q.abs().square().sum(1).clamp_min(1e-300)
    back = (k.conj() * k2).sum(1) / k.abs().square().sum(1).clamp_min(1e-300)
    both = torch.where(back.abs() > 0, (forth + 1 / back.conj()) / 2, forth)
    usable = torch.isfinite(both.abs()) & (both.abs() > 0)
    return torch.view_as_real(torch.where(usable, both, torch.ones_like(both)))


def _invertible(M: Float[Tensor, "g k k"]) -> Float[Tensor, "g k k"]:
    """The identity where a head without full rank left no invertible matrix."""
    sizes = torch.linalg.svdvals(M.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    fine = sizes[:, -1] > 1e-12 * sizes[:, 0]
    return torch.where(fine[:, None, None], M, torch.eye(M.shape[-1], dtype=M.dtype))


def _inverse(M: Float[Tensor, "g k k"]) -> Float[Tensor, "g k k"]:
    inverse, failed = torch.linalg.inv_ex(M)
    return torch.where((failed != 0)[:, None, None], torch.nan, inverse)
