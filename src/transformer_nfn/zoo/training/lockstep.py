"""Forward and backward of G nets at once, written out, in buffers that are used again.

All nets have the same shape and their tensors a leading axis over nets, so every product is one
batched matmul. What autograd would do is written by hand: the same operations, but nothing is
allocated in a step, and what two operations can share is done once. Tokens of all sequences of a
net stand in one long axis, "n (b t) x"; each head's queries, keys and values are matrices of their
own, because batched matmuls are fast only on contiguous ones.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_nfn.space import sine_positions
from transformer_nfn.zoo.nets import NetShape, views

EPS = 1e-5  # of every LayerNorm


class Normed(NamedTuple):
    """What the backward pass of a LayerNorm needs: its output and one over its deviation."""

    output: Tensor
    rstd: Tensor


class Lockstep:
    """G nets of one shape, each with its own batch of b sequences.

    Args:
        shape: Their sizes.
        weights: One flat row for each net, as `NetShape.trained` lays it out. It is read in each
            pass, so an optimizer may change it in place.
        batch: b, sequences for each net in a pass.
    """

    def __init__(
        self, shape: NetShape, weights: Float[Tensor, "n weights"], batch: int, *, train: bool
    ) -> None:
        self.shape, self.batch = shape, batch
        self.nets, self.rows = weights.shape[0], batch * shape.tokens
        self.weights = views(weights, shape.trained)
        self.flat_gradient = torch.zeros_like(weights) if train else None
        if self.flat_gradient is not None:
            self.gradient = views(self.flat_gradient, shape.trained)
        self.positions = sine_positions(shape.tokens, shape.D).to(weights)
        self._like = weights
        self._eps = torch.tensor(EPS, dtype=weights.dtype, device=weights.device)
        self._buffers: dict[str, Tensor] = {}
        self._norms: dict[str, Normed] = {}
        self._padding: Tensor | None = None
        self._pool = torch.full(
            (self.nets * batch, shape.tokens, 1), 1 / shape.tokens, dtype=weights.dtype
        ).to(weights.device)

    # ------------------------------------------------------------------------------ passes

    def logits(
        self,
        inputs: Float[Tensor, "n b t p"],
        lengths: Int[Tensor, "n b"] | None = None,
        masks: Float[Tensor, "n layers rows x"] | None = None,
    ) -> Float[Tensor, "n b classes"]:
        """Forward. `masks` multiply what leaves each attention and each MLP: dropout."""
        shape, w = self.shape, self.weights
        n, b, t, D = self.nets, self.batch, shape.tokens, shape.D
        self._masks, self._inputs = masks, inputs
        self._set_lengths(lengths)
        x = self._buffer("x", n, self.rows, D)
        if shape.inputs:
            torch.bmm(inputs.flatten(1, 2), w["embedding"], out=x)
            offset = self.positions + w["embedding_bias"].unsqueeze(1)  # n t x
            x.view(n, b, t, D).add_(offset.unsqueeze(1))
        else:
            torch.add(inputs, self.positions, out=x.view(n, b, t, D))
        for number in range(shape.blocks):
            normed = self._norm(f"first{number}", x)
            y = self._drop(2 * number, self._attention(number, normed))
            x = self._sum(f"skip{number}", x, y) if shape.skip else y
            y = self._drop(2 * number + 1, self._mlp(number, self._norm(f"second{number}", x)))
            x = self._sum(f"skipped{number}", x, y) if shape.skip else y
        x = self._norm("last", x)
        weighted = self._buffer("product", n, self.rows, D).view(n * b, t, D)
        torch.mul(x.view(n * b, t, D), self._pool, out=weighted)
        pooled = torch.sum(weighted, dim=1, out=self._buffer("pooled", n * b, D))
        hidden = self._buffer("classifier", n, b, shape.hidden)
        torch.bmm(pooled.view(n, b, D), w["weight1"], out=hidden)
        hidden.add_(w["bias1"].unsqueeze(1)).clamp_min_(0)
        return torch.baddbmm(w["bias2"].unsqueeze(1), hidden, w["weight2"])

    def backward(self, g: Float[Tensor, "n b classes"], *, add: bool = False) -> None:
        """Write the weights' gradient into `flat_gradient`, or add it, given that of the logits."""
        self._add_gradient = add
        shape, w, d = self.shape, self.weights, self.gradient
        n, b, t, D = self.nets, self.batch, shape.tokens, shape.D
        hidden, pooled = self._buffers["classifier"], self._buffers["pooled"].view(n, b, D)
        self._linear_weight(hidden, g, d["weight2"], d["bias2"])
        g = torch.bmm(g, w["weight2"].transpose(1, 2))
        g = torch.ops.aten.threshold_backward(g, hidden, 0)
        self._linear_weight(pooled, g, d["weight1"], d["bias1"])
        g = torch.bmm(g, _centred(w["weight1"]))  # n b x
        gx = self._buffer("g last", n * b, t, D)
        torch.mul(self._pool, g.view(n * b, 1, D), out=gx)
        gx = self._norm_backward("last", gx.view(n, self.rows, D))
        alone = not shape.skip
        for number in reversed(range(shape.blocks)):
            gy = self._mlp_backward(number, self._drop_backward(2 * number + 1, gx, alone))
            gy = self._norm_backward(f"second{number}", gy)
            gx = gy if alone else gx.add_(gy)
            gy = self._attention_backward(number, self._drop_backward(2 * number, gx, alone))
            gy = self._norm_backward(f"first{number}", gy)
            gx = gy if alone else gx.add_(gy)
        if shape.inputs:
            inputs = self._inputs.flatten(1, 2)
            self._linear_weight(inputs, gx, d["embedding"], d["embedding_bias"])

    # --------------------------------------------------------------------------- attention

    def _attention(self, number: int, x: Float[Tensor, "n rows x"]) -> Float[Tensor, "n rows x"]:
        w, n, h, k = self.weights, self.nets, self.shape.heads, self.shape.head_width
        t, sequences = self.shape.tokens, self.nets * self.batch
        heads = self._buffer(f"heads{number}", 3, h * sequences, t, k)
        for place, head in enumerate(heads.view(3 * h, n, self.rows, k)):
            columns = slice(place * k, (place + 1) * k)
            torch.bmm(x, w[f"QKV{number}"][:, :, columns], out=head)
            if f"bQKV{number}" in w:
                head.add_(w[f"bQKV{number}"][:, columns].unsqueeze(1))
        q, key, v = heads
        scores = self._buffer("scores", h * sequences, t, t)
        torch.baddbmm(scores, q, key.transpose(1, 2), beta=0, alpha=k**-0.5, out=scores)
        if self._padding is not None:
            scores.view(h, sequences, t, t).add_(self._padding)
        share = self._buffer(f"share{number}", h * sequences, t, t)
        torch.softmax(scores, dim=-1, out=share)
        mixed = torch.bmm(share, v, out=self._buffer(f"mixed{number}", h * sequences, t, k))
        out = self._buffer(f"attended{number}", *x.shape)
        for place, head in enumerate(mixed.view(h, n, self.rows, k)):
            rows = w[f"O{number}"][:, place * k : (place + 1) * k]
            torch.baddbmm(out, head, rows, beta=min(place, 1), out=out)
        if f"bO{number}" in w:
            out.add_(w[f"bO{number}"].unsqueeze(1))
        return out

    def _attention_backward(
        self, number: int, g: Float[Tensor, "n rows x"]
    ) -> Float[Tensor, "n rows x"]:
        w, d, h, k = self.weights, self.gradient, self.shape.heads, self.shape.head_width
        n, t, sequences = self.nets, self.shape.tokens, self.nets * self.batch
        q, key, v = self._buffers[f"heads{number}"]
        share, mixed = self._buffers[f"share{number}"], self._buffers[f"mixed{number}"]
        g_mixed = self._buffer("g mixed", h * sequences, t, k)
        for place in range(h):
            rows = slice(place * k, (place + 1) * k)
            head, g_head = (whole.view(h, n, self.rows, k)[place] for whole in (mixed, g_mixed))
            bias = d.get(f"bO{number}") if place == 0 else None
            self._linear_weight(head, g, d[f"O{number}"][:, rows], bias)
            torch.bmm(g, w[f"O{number}"][:, rows].transpose(1, 2), out=g_head)
        g_heads = self._buffer("g heads", 3, h * sequences, t, k)
        torch.bmm(share.transpose(1, 2), g_mixed, out=g_heads[2])
        g_share = torch.bmm(g_mixed, v.transpose(1, 2), out=self._buffers["scores"])
        g_scores = self._buffer("g scores", *g_share.shape)
        torch._softmax_backward_data(g_share, share, -1, share.dtype, grad_input=g_scores)
        gq, gk = g_heads[0], g_heads[1]
        torch.baddbmm(gq, g_scores, key, beta=0, alpha=k**-0.5, out=gq)
        torch.baddbmm(gk, g_scores.transpose(1, 2), q, beta=0, alpha=k**-0.5, out=gk)
        # Here one wide matmul is worth its copy: six narrow ones would add into the same tokens.
        g_fused = self._buffer("g fused", n, self.rows, 3 * h * k)
        g_fused.view(sequences, t, 3 * h, k).copy_(
            g_heads.view(3 * h, sequences, t, k).permute(1, 2, 0, 3)
        )
        normed = self._norms[f"first{number}"].output
        self._linear_weight(normed, g_fused, d[f"QKV{number}"], d.get(f"bQKV{number}"))
        return torch.bmm(
            g_fused, _centred(w[f"QKV{number}"]), out=self._buffer("g block", *g.shape)
        )

    # --------------------------------------------------------------------------------- MLP

    def _mlp(self, number: int, x: Float[Tensor, "n rows x"]) -> Float[Tensor, "n rows x"]:
        w = self.weights
        hidden = self._buffer(f"hidden{number}", self.nets, self.rows, self.shape.D_A)
        torch.bmm(x, w[f"A{number}"], out=hidden)
        hidden.add_(w[f"bA{number}"].unsqueeze(1))
        if self.shape.rectified:
            active = hidden.clamp_min_(0)
        else:
            active = self._buffer(f"active{number}", *hidden.shape)
            torch.ops.aten.gelu.out(hidden, out=active)
        out = torch.bmm(active, w[f"B{number}"], out=self._buffer(f"fed{number}", *x.shape))
        return out.add_(w[f"bB{number}"].unsqueeze(1))

    def _mlp_backward(self, number: int, g: Float[Tensor, "n rows x"]) -> Float[Tensor, "n rows x"]:
        w, d, hidden = self.weights, self.gradient, self._buffers[f"hidden{number}"]
        active = hidden if self.shape.rectified else self._buffers[f"active{number}"]
        self._linear_weight(active, g, d[f"B{number}"], d[f"bB{number}"])
        gh = self._buffer("g hidden", *hidden.shape)
        torch.bmm(g, w[f"B{number}"].transpose(1, 2), out=gh)
        if self.shape.rectified:
            torch.ops.aten.threshold_backward.grad_input(gh, hidden, 0, grad_input=gh)
        else:
            torch.ops.aten.gelu_backward.grad_input(gh, hidden, grad_input=gh)
        self._linear_weight(
            self._norms[f"second{number}"].output, gh, d[f"A{number}"], d[f"bA{number}"]
        )
        return torch.bmm(gh, _centred(w[f"A{number}"]), out=self._buffer("g block", *g.shape))

    # ------------------------------------------------------------------------ small pieces

    def _buffer(self, name: str, *shape: int) -> Tensor:
        if name not in self._buffers:
            self._buffers[name] = self._like.new_empty(shape)
        return self._buffers[name]

    def _set_lengths(self, lengths: Int[Tensor, "n b"] | None) -> None:
        """Tokens beyond a sequence's length are neither attended to nor pooled."""
        if lengths is None:
            return
        t, sequences = self.shape.tokens, self.nets * self.batch
        real = torch.arange(t, device=lengths.device) < lengths.reshape(sequences, 1)
        share = real.to(self._like.dtype) / lengths.reshape(sequences, 1)
        self._pool = share.unsqueeze(2)
        padding = self._buffer("padding", sequences, 1, t)
        self._padding = padding.zero_().masked_fill_(~real.unsqueeze(1), -torch.inf)

    def _norm(self, name: str, x: Float[Tensor, "n rows x"]) -> Float[Tensor, "n rows x"]:
        """LayerNorm, pass by pass: torch's own forward takes twice as long on rows this short."""
        D = x.shape[-1]
        normed = self._buffer(f"{name} normed", *x.shape)
        mean = self._buffer("mean", *x.shape[:-1], 1)
        rstd = self._buffer(f"{name} rstd", *x.shape[:-1], 1)
        torch.sum(x, dim=-1, keepdim=True, out=mean)
        torch.sub(x, mean.mul_(1 / D), out=normed)
        torch.linalg.vector_norm(normed, dim=-1, keepdim=True, out=rstd)
        torch.addcmul(self._eps, rstd, rstd, value=1 / D, out=rstd).rsqrt_()
        normed.mul_(rstd)
        self._norms[name] = Normed(normed, rstd)
        return normed

    def _norm_backward(self, name: str, g: Float[Tensor, "n rows x"]) -> Float[Tensor, "n rows x"]:
        """(g - n mean(g n)) / σ, where n is what the forward pass gave; in place.

        The formula has one more term, the mean of g: here g comes with mean zero, see `_centred`.
        """
        normed, rstd = self._norms[name]
        D, product = g.shape[-1], self._buffer("product", *g.shape)
        mean = self._buffer("mean", *g.shape[:-1], 1)
        torch.mul(g, normed, out=product)
        torch.sum(product, dim=-1, keepdim=True, out=mean)
        return g.addcmul_(normed, mean, value=-1 / D).mul_(rstd)

    def _drop(self, layer: int, x: Float[Tensor, "n rows x"]) -> Float[Tensor, "n rows x"]:
        return x if self._masks is None else x.mul_(self._masks[:, layer])

    def _drop_backward(
        self, layer: int, g: Float[Tensor, "n rows x"], in_place: bool
    ) -> Float[Tensor, "n rows x"]:
        if self._masks is None:
            return g
        return torch.mul(
            g, self._masks[:, layer], out=g if in_place else self._buffer("g dropped", *g.shape)
        )

    def _sum(
        self, name: str, x: Float[Tensor, "n rows x"], y: Float[Tensor, "n rows x"]
    ) -> Float[Tensor, "n rows x"]:
        return torch.add(x, y, out=self._buffer(name, *x.shape))

    def _linear_weight(
        self,
        x: Float[Tensor, "n rows in"],
        g: Float[Tensor, "n rows out"],
        weight: Float[Tensor, "n in out"],
        bias: Float[Tensor, "n out"] | None,
    ) -> None:
        # Into contiguous memory first: a batched matmul with gaps between its results is not one.
        whole = self._buffer(f"g weight {weight.shape}", *weight.shape)
        torch.bmm(x.transpose(1, 2), g, out=whole)
        if self._add_gradient:
            weight.add_(whole)
        else:
            weight.copy_(whole)
        if bias is not None and self._add_gradient:
            bias.add_(g.sum(dim=1))
        elif bias is not None:
            torch.sum(g, dim=1, out=bias)


def _centred(weight: Float[Tensor, "n in out"]) -> Float[Tensor, "n out in"]:
    """The transpose of a matrix that follows a LayerNorm, each of its rows with mean zero.

    What leaves a LayerNorm has mean zero, so the mean of a column of the matrix does nothing.
    Without it the gradient that goes back has mean zero too, which saves LayerNorm's backward pass
    from taking it out of every token.
    """
    return (weight - weight.mean(dim=1, keepdim=True)).transpose(1, 2)
