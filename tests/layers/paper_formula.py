"""The paper's layers as it prints them: the einsums of its pseudocode, typed by hand.

Appendix "Implementation of Equivariant and Invariant Layers". b is the batch, d and e the
channels, p q j k as there; the lists name our row, the paper's einsum, and where the paper
unsqueezes the result. [WW] terms have their head axis h, as in the paper. The bias of B needs
``unsqueeze(-2)`` beside the paper's ``unsqueeze(0)``: [1, e, D] does not broadcast to
[b, e, D_A, D].
"""

import torch
from torch import Tensor

EQUIVARIANT: list[tuple[str, str, tuple[int, ...]]] = [
    # E(W)^(Q:i), (K:i), (V:i): einsum(bdhpk, edjp -> behjk)
    ("Q <- Q h x k", "bdhpk,edjp->behjk", ()),
    ("K <- K h x k", "bdhpk,edjp->behjk", ()),
    ("V <- V h x v", "bdhpk,edjp->behjk", ()),
    # E(W)^(O:i)
    ("O <- O h v [r]", "bdhjk,ed->behj", (-1,)),
    ("O <- O h v r", "bdhjk,ed->behjk", ()),
    # E(W)^(A)
    ("A <- QK x y", "bdhpq,edpq->be", (-1, -1)),
    ("A <- VO x [r]", "bdhpq,edp->be", (-1, -1)),
    ("A <- VO x r", "bdhpj,edp->bej", (-1,)),
    ("A <- A [r] [a]", "bdpq,ed->be", (-1, -1)),
    ("A <- A r [a]", "bdjq,ed->bej", (-1,)),
    ("A <- A [r] a", "bdpk,ed->bek", (-2,)),
    ("A <- A r a", "bdjk,ed->bejk", ()),
    ("A <- B [a] x", "bdpq,edq->be", (-1, -1)),
    ("A <- B a x", "bdkq,edq->bek", (-2,)),
    ("A <- bA [a]", "bdq,ed->be", (-1, -1)),
    ("A <- bA a", "bdk,ed->bek", (-2,)),
    ("A <- bB x", "bdq,edq->be", (-1, -1)),
    ("A <- 1", "e->e", (0, -1, -1)),
    # E(b)^(A)
    ("bA <- QK x y", "bdhpq,edpq->be", (-1,)),
    ("bA <- VO x [r]", "bdhpq,edp->be", (-1,)),
    ("bA <- A [r] [a]", "bdpq,ed->be", (-1,)),
    ("bA <- A [r] a", "bdpk,ed->bek", ()),
    ("bA <- B [a] x", "bdpq,edq->be", (-1,)),
    ("bA <- B a x", "bdkq,edq->bek", ()),
    ("bA <- bA [a]", "bdq,ed->be", (-1,)),
    ("bA <- bA a", "bdk,ed->bek", ()),
    ("bA <- bB x", "bdq,edq->be", (-1,)),
    ("bA <- 1", "e->e", (0, -1)),
    # E(W)^(B)
    ("B <- QK x y", "bdhpq,edkpq->bek", (-2,)),
    ("B <- VO x [r]", "bdhpq,edkp->bek", (-2,)),
    ("B <- A [r] [a]", "bdpq,edk->bek", (-2,)),
    ("B <- A [r] a", "bdpj,edk->bejk", ()),
    ("B <- B [a] x", "bdpq,edkq->bek", (-2,)),
    ("B <- B a x", "bdjq,edkq->bejk", ()),
    ("B <- bA [a]", "bdq,edk->bek", (-2,)),
    ("B <- bA a", "bdj,edk->bejk", ()),
    ("B <- bB x", "bdq,edkq->bek", (-2,)),
    ("B <- 1", "ek->ek", (0, -2)),
    # E(b)^(B)
    ("bB <- QK x y", "bdhpq,edkpq->bek", ()),
    ("bB <- VO x [r]", "bdhpq,edkp->bek", ()),
    ("bB <- A [r] [a]", "bdpq,edk->bek", ()),
    ("bB <- B [a] x", "bdpq,edkq->bek", ()),
    ("bB <- bA [a]", "bdq,edk->bek", ()),
    ("bB <- bB x", "bdq,edkq->bek", ()),
    ("bB <- 1", "ek->ek", (0,)),
]

INVARIANT: list[tuple[str, str, tuple[int, ...]]] = [
    ("I <- QK x y", "bdhpq,edpqk->bek", ()),
    ("I <- VO x [r]", "bdhpq,edpk->bek", ()),
    ("I <- A [r] [a]", "bdpq,edk->bek", ()),
    ("I <- B [a] x", "bdpq,edqk->bek", ()),
    ("I <- bA [a]", "bdq,edk->bek", ()),
    ("I <- bB x", "bdq,edqk->bek", ()),
    ("I <- 1", "ek->ek", (0,)),
]


def evaluate(
    table: list[tuple[str, str, tuple[int, ...]]],
    weights: dict[str, Tensor],
    parameters: dict[str, Tensor],
) -> dict[str, Tensor]:
    """The paper's sums for one block: weights "b d …", parameters in the paper's own shapes."""
    sources = weights | {
        "QK": torch.einsum("bdhpk,bdhqk->bdhpq", weights["Q"], weights["K"]),
        "VO": torch.einsum("bdhpk,bdhkq->bdhpq", weights["V"], weights["O"]),
    }
    out: dict[str, Tensor] = {}
    for name, equation, unsqueezes in table:
        target, source = name.split()[0], name.split()[2]
        operands = [parameters[name]] if source == "1" else [sources[source], parameters[name]]
        term = torch.einsum(equation, *operands)
        for dim in unsqueezes:
            term = term.unsqueeze(dim)
        out[target] = out[target] + term if target in out else term
    return out
