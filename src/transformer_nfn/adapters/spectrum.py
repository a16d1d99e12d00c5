"""How large an update is, and in how many directions, without writing it out."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.space import WeightBatch


def singular_values(batch: WeightBatch) -> Float[Tensor, "n c l s"]:
    """Those of each update A B that may be other than 0, the largest first.

    They are those of P (A B) R, where the columns of P and of R span what A and B can reach, a
    matrix of at most r × r. P and R are held fixed when derivatives are taken: a singular value
    changes by uᵀ d(A B) v, and both u and v are in what is spanned. So derivatives are right also
    where columns of A are 0, as in padded adapters; second derivatives are not.

    Args:
        batch: Of the block `LORA`.
    """
    A, B = batch["A"], batch["B"]
    with torch.no_grad():
        P, R = torch.linalg.qr(A).Q, torch.linalg.qr(B.mT).Q
    found: Tensor = torch.linalg.svdvals((P.mT @ A) @ (B @ R))
    return found


def soft_ranks(batch: WeightBatch, thresholds: Float[Tensor, " t"]) -> Float[Tensor, "n c l t"]:
    """How many singular values σ of each update A B are above each threshold: Σ σ² / (σ² + t²).

    Zeros add nothing, so padding is not seen. A threshold far below all that are not 0 gives the
    rank.

    Examples:
        >>> import torch
        >>> from transformer_nfn.adapters import LORA, soft_ranks
        >>> from transformer_nfn.space import BlockSpec, WeightBatch
        >>> spec = BlockSpec(LORA, D_x=6, D_y=5, rank=3)
        >>> batch = WeightBatch.random(spec, networks=1, generator=torch.manual_seed(0))
        >>> soft_ranks(batch, torch.tensor([1e-4, 1e4])).round().flatten().tolist()
        [3.0, 0.0]

    Args:
        batch: Of the block `LORA`.
        thresholds: Singular values, all positive.
    """
    squares = singular_values(batch).square().unsqueeze(-1)  # n c l s 1
    return (squares / (squares + thresholds.to(squares).square())).sum(-2)
