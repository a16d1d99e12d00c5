"""What a model is trained for: a number, a class, or an order."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.space import ShapeError


def ranking_loss(scores: Float[Tensor, " n"], targets: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """How wrong the order is: mean of log(1 + e^(s_j - s_i)) over pairs with target i above j.

    Examples:
        >>> import torch
        >>> from transformer_nfn.models import ranking_loss
        >>> better = torch.tensor([0.1, 0.5, 0.9])
        >>> ranking_loss(10 * better, better) < ranking_loss(-10 * better, better)
        tensor(True)
    """
    if scores.dim() != 1 or scores.shape != targets.shape:
        raise ShapeError(
            f"scores and targets are one number for each network, got {tuple(scores.shape)} and "
            f"{tuple(targets.shape)}"
        )
    above = targets.unsqueeze(1) > targets  # i j
    gaps = (scores.unsqueeze(1) - scores).float()  # many small numbers are added up
    # Where all are equal there is nothing to learn: 0, with gradients of 0.
    wrong = torch.where(above, F.softplus(-gaps), 0)
    return (wrong.sum() / above.sum().clamp_min(1)).to(scores.dtype)


#: By what is predicted: a number of each network, its class (as many outputs as classes), an order.
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"regression": F.mse_loss, "classification": F.cross_entropy, "ranking": ranking_loss}
)
