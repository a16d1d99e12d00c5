"""What parts are computed with, for n networks at a time: norms, products, fixed positions.

Tokens are "n t x", or "n s t x" for s sequences for each network. Norms have no affine part: on
real checkpoints it is folded into the weights that follow.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.space.errors import ShapeError


def layer_norm(x: Float[Tensor, "... x"], eps: float) -> Float[Tensor, "... x"]:
    """√D (x - mean) / |x - mean| for each token (appendix "Matrix Group Preserved by LayerNorm").

    With eps = 0 it is the paper's; a positive eps breaks its scale symmetry.
    """
    return F.layer_norm(x, x.shape[-1:], eps=eps)


def rms_norm(x: Float[Tensor, "... x"], eps: float) -> Float[Tensor, "... x"]:
    """√D x / |x| for each token."""
    return F.rms_norm(x, x.shape[-1:], eps=eps)


def per_net(
    x: Float[Tensor, "n *s t x"],
    weight: Float[Tensor, "n x a"],
    bias: Float[Tensor, "n a"] | None = None,
) -> Float[Tensor, "n *s t a"]:
    """X W + b, each network with its own W and b: one batched matmul over all its tokens."""
    rows = x.flatten(1, -2)  # n (s t) x
    out = rows @ weight if bias is None else torch.baddbmm(bias.unsqueeze(1), rows, weight)
    return out.view(*x.shape[:-1], weight.shape[2])


def per_head(
    x: Float[Tensor, "n *s t z"], weight: Float[Tensor, "n h z k"]
) -> Float[Tensor, "n *s h t k"]:
    """X W^(i) for each head i: the heads side by side in one matrix, then taken apart."""
    heads, width = weight.shape[1], weight.shape[3]
    beside = per_net(x, weight.transpose(1, 2).flatten(2))  # n *s t (h k)
    return beside.view(*x.shape[:-1], heads, width).transpose(-3, -2)


def join_heads(
    heads: Float[Tensor, "n *s h t v"], weight: Float[Tensor, "n h v r"]
) -> Float[Tensor, "n *s t r"]:
    """Σ_i Y^(i) W^(O,i): the heads side by side, and their matrices below each other."""
    return per_net(heads.transpose(-3, -2).flatten(-2), weight.flatten(1, 2))


def with_bias_row(x: Float[Tensor, "n *s t x"]) -> Float[Tensor, "n *s t z"]:
    """Append a coordinate that is always one, which meets the bias row of Q, K and V."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def sine_positions(tokens: int, width: int) -> Float[Tensor, "t x"]:
    """The fixed positions of the paper's nets: sine in even, cosine in odd coordinates."""
    if width % 2:
        raise ShapeError(f"sine positions need an even model dimension D, not {width}")
    position = torch.arange(tokens, dtype=torch.float64).unsqueeze(1)
    frequency = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float64) * (-torch.log(torch.tensor(1e4)) / width)
    )
    angles = position * frequency  # t x/2
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
