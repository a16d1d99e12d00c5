"""What a block computes: the functions whose symmetries the group describes.

Each takes the tensors of one block of n networks, without channels, and tokens "n t x".
Norms have no affine part: on real checkpoints it is folded into the weights that follow.
"""

from collections.abc import Mapping

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
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def attention(
    q: Float[Tensor, "n h t k"], k: Float[Tensor, "n h t k"], v: Float[Tensor, "n h t v"]
) -> Float[Tensor, "n h t v"]:
    """softmax(q kᵀ / √D_k) v for each head (section "Multi-head Attention")."""
    scores = torch.einsum("nhtk,nhsk->nhts", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("nhts,nhsv->nhtv", scores.softmax(dim=-1), v)


def multi_head(w: Mapping[str, Tensor], x: Float[Tensor, "n t z"]) -> Float[Tensor, "n t r"]:
    """MultiHead(X) = Σ_i softmax(X W^(Q,i) (X W^(K,i))ᵀ / √D_k) X W^(V,i) W^(O,i)."""
    q = torch.einsum("ntz,nhzk->nhtk", x, w["Q"])
    k = torch.einsum("ntz,nhzk->nhtk", x, w["K"])
    v = torch.einsum("ntz,nhzv->nhtv", x, w["V"])
    return torch.einsum("nhtv,nhvr->ntr", attention(q, k, v), w["O"])


def grouped_multi_head(
    w: Mapping[str, Tensor], x: Float[Tensor, "n t x"]
) -> Float[Tensor, "n t x"]:
    """The same where the heads m of a group g share one key and one value head."""
    heads = w["Q"].shape[2]
    q = torch.einsum("ntx,ngmxk->ngmtk", x, w["Q"]).flatten(1, 2)  # n (g m) t k
    k = torch.einsum("ntx,ngxk->ngtk", x, w["K"]).repeat_interleave(heads, dim=1)
    v = torch.einsum("ntx,ngxv->ngtv", x, w["V"]).repeat_interleave(heads, dim=1)
    return torch.einsum("nhtv,nhvx->ntx", attention(q, k, v), w["O"].flatten(1, 2))


def with_bias_row(x: Float[Tensor, "n t x"]) -> Float[Tensor, "n t z"]:
    """Append a coordinate that is always one, which meets the bias row of Q, K and V."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def paper_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n t x"], eps: float
) -> Float[Tensor, "n t x"]:
    """Attn(X) = LN(ReLU(X̂ W^(A) + b^(A)) W^(B) + b^(B)), X̂ = LN(MultiHead(X)).

    Section "Weight space", equations attn_MLP and attn_multihead. No skip connection.
    """
    hidden = layer_norm(multi_head(w, x), eps) @ w["A"] + w["bA"].unsqueeze(1)
    return layer_norm(hidden.relu() @ w["B"] + w["bB"].unsqueeze(1), eps)


def residual_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n t x"], eps: float
) -> Float[Tensor, "n t x"]:
    """Pre-norm with skip connections, as in GPT-2 and ViT: x + MultiHead(LN x), then x + MLP(LN x).

    `bO` is left out where the block does not declare it.
    """
    x = x + multi_head(w, with_bias_row(layer_norm(x, eps)))
    if "bO" in w:
        x = x + w["bO"].unsqueeze(1)
    hidden = F.gelu(layer_norm(x, eps) @ w["A"] + w["bA"].unsqueeze(1))
    return x + hidden @ w["B"] + w["bB"].unsqueeze(1)


def _gated_mlp(
    w: Mapping[str, Tensor], x: Float[Tensor, "n t x"], eps: float
) -> Float[Tensor, "n t x"]:
    x_normed = rms_norm(x, eps)
    return x + (F.silu(x_normed @ w["gate"]) * (x_normed @ w["up"])) @ w["down"]


def gated_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n t x"], eps: float
) -> Float[Tensor, "n t x"]:
    """The Llama family's block, RMSNorm and gated MLP, without RoPE (which leaves less of GL)."""
    return _gated_mlp(w, x + multi_head(w, rms_norm(x, eps)), eps)


def grouped_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n t x"], eps: float
) -> Float[Tensor, "n t x"]:
    """`gated_block` with grouped-query attention."""
    return _gated_mlp(w, x + grouped_multi_head(w, rms_norm(x, eps)), eps)


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
