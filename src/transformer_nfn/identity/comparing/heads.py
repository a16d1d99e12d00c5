"""Heads of a block, and how far those of two blocks are from each other, all against all.

All distances come from D_k × D_k Gram matrices, never from D × D products:
⟨Q Kᵀ, Q' K'ᵀ⟩ = ⟨Qᵀ Q', Kᵀ K'⟩.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_nfn.identity.comparing.units import as_complex
from transformer_nfn.space import Attention, Kind, WeightBatch


@dataclass(frozen=True)
class Heads:
    """Canonical attention weights, heads in groups; a block without grouping has m = 1."""

    Q: Float[Tensor, "g m z k"]
    K: Float[Tensor, "g z k"]
    V: Float[Tensor, "g z v"]
    O: Float[Tensor, "g m v x"]
    rotary: bool

    @staticmethod
    def of(batch: WeightBatch, part: Attention) -> "Heads":
        """From canonical weights of one block, of one of its attentions."""
        names = part.query, part.key, part.value, part.output_weight
        Q, K, V, O = (batch[name][0, 0, 0] for name in names)
        if not part.grouped:
            Q, O = Q.unsqueeze(1), O.unsqueeze(1)
        kind = batch.spec.block.axes[part.compared].kind
        return Heads(Q, K, V, O, rotary=kind in (Kind.ROTARY, Kind.SIGNED))

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
