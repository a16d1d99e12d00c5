"""What a block computes: the functions whose symmetries the group describes.

Each takes the tensors of one block of n networks, without channels, and tokens "n t x", or
"n s t x" for s sequences for each network.
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


def attention(
    q: Float[Tensor, "n *s h t k"], k: Float[Tensor, "n *s h t k"], v: Float[Tensor, "n *s h t v"]
) -> Float[Tensor, "n *s h t v"]:
    """softmax(q kᵀ / √D_k) v for each head (section "Multi-head Attention")."""
    # Four axes and no more: torch's fast kernel refuses others, and what it falls back to takes
    # twice as long.
    out = F.scaled_dot_product_attention(
        q.flatten(0, -4), k.flatten(0, -4), v.flatten(0, -4)
    )  # (n s) h t v
    return out.reshape(v.shape)


def join_heads(
    heads: Float[Tensor, "n *s h t v"], weight: Float[Tensor, "n h v r"]
) -> Float[Tensor, "n *s t r"]:
    """Σ_i Y^(i) W^(O,i): the heads side by side, and their matrices below each other."""
    return per_net(heads.transpose(-3, -2).flatten(-2), weight.flatten(1, 2))


def multi_head(w: Mapping[str, Tensor], x: Float[Tensor, "n *s t z"]) -> Float[Tensor, "n *s t r"]:
    """MultiHead(X) = Σ_i softmax(X W^(Q,i) (X W^(K,i))ᵀ / √D_k) X W^(V,i) W^(O,i)."""
    q, k, v = (per_head(x, w[name]) for name in ("Q", "K", "V"))
    return join_heads(attention(q, k, v), w["O"])


def grouped_multi_head(
    w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
) -> Float[Tensor, "n *s t x"]:
    """The same where the heads m of a group g share one key and one value head."""
    heads = w["Q"].shape[2]
    q = per_head(x, w["Q"].flatten(1, 2))  # n *s (g m) t k
    k, v = (per_head(x, w[name]).repeat_interleave(heads, dim=-3) for name in ("K", "V"))
    return join_heads(attention(q, k, v), w["O"].flatten(1, 2))


def with_bias_row(x: Float[Tensor, "n *s t x"]) -> Float[Tensor, "n *s t z"]:
    """Append a coordinate that is always one, which meets the bias row of Q, K and V."""
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)


def paper_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], eps: float
) -> Float[Tensor, "n *s t x"]:
    """Attn(X) = LN(ReLU(X̂ W^(A) + b^(A)) W^(B) + b^(B)), X̂ = LN(MultiHead(X)).

    Section "Weight space", equations attn_MLP and attn_multihead. No skip connection.
    """
    hidden = per_net(layer_norm(multi_head(w, x), eps), w["A"], w["bA"])
    return layer_norm(per_net(hidden.relu(), w["B"], w["bB"]), eps)


def residual_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], eps: float
) -> Float[Tensor, "n *s t x"]:
    """Pre-norm with skip connections, as in GPT-2 and ViT: x + MultiHead(LN x), then x + MLP(LN x).

    `bO` is left out where the block does not declare it.
    """
    x = x + multi_head(w, with_bias_row(layer_norm(x, eps)))
    if "bO" in w:
        x = x + w["bO"].view(-1, *(1,) * (x.dim() - 2), x.shape[-1])
    hidden = F.gelu(per_net(layer_norm(x, eps), w["A"], w["bA"]))
    return x + per_net(hidden, w["B"], w["bB"])


def _gated_mlp(
    w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], eps: float
) -> Float[Tensor, "n *s t x"]:
    x_normed = rms_norm(x, eps)
    gate, up = (per_net(x_normed, w[name]) for name in ("gate", "up"))
    return x + per_net(F.silu(gate) * up, w["down"])


def gated_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], eps: float
) -> Float[Tensor, "n *s t x"]:
    """The Llama family's block, RMSNorm and gated MLP, without RoPE (which leaves less of GL)."""
    return _gated_mlp(w, x + multi_head(w, rms_norm(x, eps)), eps)


def grouped_block(
    w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], eps: float
) -> Float[Tensor, "n *s t x"]:
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
