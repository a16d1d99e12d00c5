"""Heads of one block against those of another: which is which, and the matrices between them.

The paper's theorem: two attentions are the same function exactly if their heads can be paired so
that Q Kᵀ and V O agree, given distinct Q Kᵀ of full rank. All distances come from D_k × D_k Gram
matrices, never from D × D products: ⟨Q Kᵀ, Q' K'ᵀ⟩ = ⟨Qᵀ Q', Kᵀ K'⟩.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
from torch import Tensor

from transformer_nfn.identity.comparing.units import as_complex
from transformer_nfn.space import WeightBatch


@dataclass(frozen=True)
class Heads:
    """Canonical attention weights, heads in groups; a block without grouping has m = 1."""

    Q: Float[Tensor, "g m z k"]
    K: Float[Tensor, "g z k"]
    V: Float[Tensor, "g z v"]
    O: Float[Tensor, "g m v x"]
    rotary: bool

    @staticmethod
    def of(batch: WeightBatch) -> "Heads":
        """From canonical weights of one block."""
        Q, K, V, O = (batch[name][0, 0, 0] for name in "QKVO")
        grouped = "g" in batch.spec.block.axes
        if not grouped:
            Q, O = Q.unsqueeze(1), O.unsqueeze(1)
        return Heads(Q, K, V, O, rotary=grouped)

    @property
    def groups(self) -> int:
        """Key heads."""
        return self.K.shape[0]

    def pick(self, groups: Int[Tensor, " g"], inside: Int[Tensor, "g m"]) -> "Heads":
        """Heads in another order: first inside each group, then the groups."""
        m = inside[:, :, None, None]
        Q = torch.take_along_dim(self.Q, m, dim=1)[groups]
        O = torch.take_along_dim(self.O, m, dim=1)[groups]
        return Heads(Q, self.K[groups], self.V[groups], O, self.rotary)


def form_distances(a: Heads, b: Heads, *, outputs: bool) -> tuple[Tensor, Tensor]:
    """Squared relative distances of Q Kᵀ and of V O, for all pairs of heads: "g m G M" each.

    Args:
        a: The first block's heads.
        b: The second's.
        outputs: Whether both write in the same basis; if not, V O Oᵀ Vᵀ is compared instead.
    """
    qk = _relative(_qk_inner(a, b), _qk_norms(a), _qk_norms(b))
    vo_inner = _vo_inner if outputs else _vvo_inner
    vo = _relative(vo_inner(a, b), _own(vo_inner, a), _own(vo_inner, b))
    return qk, vo


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


def sums_agree(
    a: Heads,
    b: Heads,
    head: int,
    looks: Float[Tensor, " n"],
    values: Float[Tensor, " n"],
    limit: float,
) -> bool:
    """Whether all heads with the Q Kᵀ of one head have the same sum of V O in both blocks.

    Heads that look at the same tokens are one function together: their V O may be shared among
    them in any way.

    Args:
        a: The first block's heads, in the order of the second.
        b: The second's.
        head: A head of the second, counted through the groups.
        looks: For each head the mean square of what rounding does to its Q Kᵀ.
        values: The same of V O.
        limit: How many times rounding may explain.
    """
    qk, norms = (form.flatten(2).flatten(0, 1) for form in (_qk_inner(b, b), _vo_inner(b, b)))
    sizes = qk.diagonal()
    apart = sizes + sizes[head] - qk[head] - qk[:, head]
    # Differences of large sums are known to float64's own rounding only.
    known = 1e-14 * (sizes + sizes[head])
    alike = torch.nonzero(apart <= limit**2 * (looks + looks[head]) + known).flatten()
    ours, between_both = (
        _vo_inner(a, other).flatten(2).flatten(0, 1)[alike][:, alike] for other in (a, b)
    )
    theirs = norms[alike][:, alike]
    square = (ours + theirs - between_both - between_both.T).sum()
    known = 1e-14 * (ours.diagonal().sum() + theirs.diagonal().sum())
    return bool(square <= limit**2 * values[alike].sum() + known)


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


def _relative(
    inner: Float[Tensor, "g m G M"], ours: Float[Tensor, "g m"], theirs: Float[Tensor, "G M"]
) -> Float[Tensor, "g m G M"]:
    one, two = ours[:, :, None, None], theirs[None, None]
    size = torch.maximum(one, two).clamp_min(1e-300)
    return ((one + two - 2 * inner) / size).clamp_min(0)


def _qk_inner(a: Heads, b: Heads) -> Float[Tensor, "g m G M"]:
    if a.rotary:
        q, k, q2, k2 = (as_complex(t) for t in (a.Q, a.K, b.Q, b.K))
        queries = torch.einsum("gmzj,GMzj->gmGMj", q.conj(), q2)
        keys = torch.einsum("gzj,Gzj->gGj", k, k2.conj())
        return torch.einsum("gmGMj,gGj->gmGM", queries, keys).real
    parts = []
    for q, k in zip(a.Q, a.K, strict=True):  # one group at a time: h² · D_k² numbers are many
        queries = torch.einsum("mzi,GMzj->mGMij", q, b.Q)
        keys = torch.einsum("zi,Gzj->Gij", k, b.K)
        parts.append(torch.einsum("mGMij,Gij->mGM", queries, keys))
    return torch.stack(parts)


def _vo_inner(a: Heads, b: Heads) -> Float[Tensor, "g m G M"]:
    parts = []
    for v, o in zip(a.V, a.O, strict=True):
        values = torch.einsum("zi,Gzj->Gij", v, b.V)
        outputs = torch.einsum("mix,GMjx->mGMij", o, b.O)
        parts.append(torch.einsum("mGMij,Gij->mGM", outputs, values))
    return torch.stack(parts)


def _vvo_inner(a: Heads, b: Heads) -> Float[Tensor, "g m G M"]:
    """⟨F Fᵀ, F' F'ᵀ⟩ for F = V O: what does not depend on the basis that O writes in."""
    ours, theirs = (torch.einsum("gmix,gmjx->gmij", heads.O, heads.O) for heads in (a, b))
    values = torch.einsum("gzi,Gzj->gGij", a.V, b.V)
    return torch.einsum("gmab,gGbc,GMcd,gGad->gmGM", ours, values, theirs, values)


def _qk_norms(a: Heads) -> Float[Tensor, "g m"]:
    return _own(_qk_inner, a)


def _own(inner: object, a: Heads) -> Float[Tensor, "g m"]:
    """The squared norm of each head's form."""
    found = []
    for g in range(a.groups):
        for m in range(a.Q.shape[1]):
            one = Heads(
                a.Q[g : g + 1, m : m + 1],
                a.K[g : g + 1],
                a.V[g : g + 1],
                a.O[g : g + 1, m : m + 1],
                a.rotary,
            )
            found.append(inner(one, one)[0, 0, 0, 0])  # type: ignore[operator]
    return torch.stack(found).view(a.groups, -1)
