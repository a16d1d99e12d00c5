"""Attention: heads that compare tokens and carry what they find from one to another."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.space.axes import Axis, free, linear, permuted, rotary, signed
from transformer_nfn.space.functions import join_heads, per_head, rms_norm, with_bias_row
from transformer_nfn.space.parts.part import (
    FUNCTION_ONLY,
    STREAM,
    TINY,
    WITH_BIAS_ROW,
    Part,
    Unit,
    after_norm,
    along_stream,
    constant_unit,
    number_unit,
    row_unit,
)
from transformer_nfn.space.parts.rotary import Rope, turned

#: What stands for the stream of the keys in Q Kᵀ, where that of the queries has this label.
_SECOND = {STREAM: "y", WITH_BIAS_ROW: "w"}


@dataclass(frozen=True)
class Attention(Part):
    """Multi-head attention.

    Attributes:
        grouped: Heads of a group share a key and a value head, hence one matrix a group; inside
            each group they have a permutation of their own.
        bias_row: The biases of queries, keys and values are the last row of what they read.
        output: Where it writes: the stream, or an axis of its own that the next part reads.
        output_bias: It has a bias where it writes.
        rotary: It has rotary positions, which leave a complex number for each pair of coordinates
            of what was an invertible matrix. Layers know none of this, so there are no products.
        normed: Queries and keys of each head go through an RMSNorm before they turn, whose scales
            nQ and nK are one for all heads. Of what rotary positions leave that leaves a sign for
            each pair of coordinates, and a number for each between the two scales. A scale of the
            whole head is none: the norm's ε sees it.
        together: These norms are taken over all heads at once, and have scales for each head: then
            there is a number for each pair and key head between them.
        after: What it writes goes through an RMSNorm with a scale nO before it is added.
        scaled: What it writes is scaled by nO, each coordinate by a number of its own.
        rope: Their angles, where the function is wanted.
        causal: A token sees only those before it.
        windows: For each block how many tokens back it reaches; empty if no block has a limit.
        turning: For each block whether positions turn; empty if they do in all.
        scale: Of the scores; 1/√D_k if None.
        softcap: Scores s become c tanh(s/c) for this c, if there is one.
        norm_eps: Of these norms.
        local_rope: The angles of blocks with a window, where they are others.
        relative: To the scores is added a number for the distance of the tokens and the head, from
            a table that all blocks share, `w["relative"]`. So no head of one block can take the
            place of another without all blocks.
        alibi: Scores fall with the distance of the tokens, for each head at a rate of its own: no
            head can take the place of another.
    """

    grouped: bool = False
    bias_row: bool = True
    output: str = STREAM
    output_bias: bool = True
    rotary: bool = False
    alibi: bool = False
    relative: bool = False
    normed: bool = False
    together: bool = False
    after: bool = False
    scaled: bool = False
    norm_eps: float = field(default=0.0, metadata=FUNCTION_ONLY)
    rope: Rope | None = field(default=None, metadata=FUNCTION_ONLY)
    local_rope: Rope | None = field(default=None, metadata=FUNCTION_ONLY)
    causal: bool = field(default=False, metadata=FUNCTION_ONLY)
    windows: tuple[int | None, ...] = field(default=(), metadata=FUNCTION_ONLY)
    turning: tuple[bool, ...] = field(default=(), metadata=FUNCTION_ONLY)
    scale: float | None = field(default=None, metadata=FUNCTION_ONLY)
    softcap: float | None = field(default=None, metadata=FUNCTION_ONLY)

    readers = ("Q", "K", "V")
    writers = ("O", "bO")
    #: What its tensors are called, by what they do, and the axes that two of them share.
    query: ClassVar[str] = "Q"
    key: ClassVar[str] = "K"
    value: ClassVar[str] = "V"
    output_weight: ClassVar[str] = "O"
    constant: ClassVar[str] = "bO"
    compared: ClassVar[str] = "k"
    carried: ClassVar[str] = "v"

    @property
    def outer(self) -> str:
        """The axis of its heads, or of groups of them."""
        return "g" if self.grouped else "h"

    @property
    def reads(self) -> str:
        """The stream, with a bias row or without."""
        return WITH_BIAS_ROW if self.bias_row else STREAM

    @property
    def axes(self) -> Mapping[str, Axis]:
        """Heads, what queries and keys share, and what values and outputs share."""
        found = {STREAM: free("D")}
        if self.bias_row:
            found[WITH_BIAS_ROW] = free("D + 1")
        if not self.rotary:
            found[_SECOND[self.reads]] = found[self.reads]
        per = self.outer
        found[per] = (free if self.alibi or self.relative else permuted)(
            "groups" if self.grouped else "heads"
        )
        if self.grouped:
            found["m"] = permuted("heads_per_group", per=per)
        kind = signed if self.normed else rotary if self.rotary else linear
        found[self.compared] = kind("D_k", per=per)
        if self.normed:
            scales = linear("1", per=f"{per} j" if self.together else "j")
            found |= {"f": free("2"), "j": free("pairs"), "i": scales}
        found[self.carried] = linear("D_v", per=per)
        if self.output != STREAM:
            found[self.output] = permuted("D")
        return found

    @property
    def tensors(self) -> Mapping[str, str]:
        """Q, K, V, O, and the output's bias."""
        shared = self.outer
        each = f"{shared} m" if self.grouped else shared
        read, source, k, v = self.reads, self.source, self.compared, self.carried
        found = {
            self.query: f"{each} {read} {k}",
            self.key: f"{shared} {source} {k if self.normed else f'{k}*'}",
            self.value: f"{shared} {source} {v}",
            self.output_weight: f"{each} {v}* {self.output}",
        }
        if self.normed:
            own = (f"{each} ", f"{shared} ") if self.together else ("", "")
            found |= {"nQ": f"{own[0]}f j i", "nK": f"{own[1]}f j i*"}
        found |= dict.fromkeys(self.gains, self.output)
        return found | ({self.constant: self.output} if self.output_bias else {})

    @property
    def source(self) -> str:
        """The label of what keys and values read."""
        return self.reads

    def source_of(self, reader: str) -> str:
        """The stream, or for keys and values their source."""
        return self.reads if reader == self.query else self.source

    @property
    def products(self) -> Mapping[str, str]:
        """Q Kᵀ and V O, summed over heads: of a group Q Kᵀ sees only the sum of its queries."""
        if self.rotary:
            return {}
        tensors, read = self.tensors, self.reads
        second = _SECOND[read]
        # V O reads and writes the stream: one of the two needs another name.
        value = second if read == self.output else read
        of_values = tensors["V"].replace(f" {read} ", f" {value} ")
        of_keys = tensors["K"].replace(f" {read} ", f" {second} ")
        return {
            "QK": f"Q {tensors['Q']}, K {of_keys} -> {read} {second}",
            "VO": f"V {of_values}, O {tensors['O']} -> {value} {self.output}",
        }

    @property
    def units(self) -> Mapping[str, Unit]:
        """Q Kᵀ and V O of each head; under rotary positions Q Kᵀ of each pair of coordinates."""
        labels = (self.outer, "m") if self.grouped else (self.outer,)
        values, looks = (self.value, self.output_weight), (self.query, self.key)
        found = {" ".join(values): Unit(values, labels, self._values)}
        if self.bias_row:  # a token of zeros sees nothing else, and a norm makes a whole one of it
            found[f"b{' '.join(values)}"] = constant_unit(values, labels, self._constants)
        if self.normed:  # a norm stands between queries and keys, so each is seen by itself
            if self.bias_row:
                each = {"Q": labels, "K": labels[:1]}
                found |= {f"b{name}": _bias_unit(name, own) for name, own in each.items()}
            found |= {
                "Q": Unit(("Q",), labels, lambda w: (w["Q"].flatten(-2).unsqueeze(-1),)),
                "K": Unit(("K",), labels[:1], lambda w: (w["K"].flatten(-2).unsqueeze(-1),)),
                "nQ nK": Unit(
                    ("nQ", "nK"),
                    (*labels, "j") if self.together else ("j",),
                    self._norm_scales,
                    single=True,  # of few numbers, at the least
                ),
            }
        else:
            found[" ".join(looks)] = Unit(looks, labels, self._looks, pairs=self.rotary)
        found |= {name: number_unit(name) for name in self.gains}
        return found | ({self.constant: row_unit(self.constant)} if self.output_bias else {})

    def _looks(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self._each_head(w[self.query]), w[self.key].unsqueeze(1)  # g m z k, g 1 z k

    def _values(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        O = self._each_head(w[self.output_weight])
        return w[self.value].unsqueeze(1), O.mT  # g 1 z v, g m x v

    def _constants(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        V, O = self._values(w)
        return V[..., -1:, :], O

    def _norm_scales(self, w: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of the norms of queries and keys, for each pair of coordinates "… j f i"."""
        nQ, nK = (w[name].movedim(-3, -2) for name in ("nQ", "nK"))
        return nQ, nK.unsqueeze(1) if self.together and self.grouped else nK

    @property
    def gains(self) -> tuple[str, ...]:
        """The scale of what it writes."""
        return ("nO",) if self.after or self.scaled else ()

    def _each_head(self, tensor: Tensor) -> Float[Tensor, "g m x k"]:
        return tensor if self.grouped else tensor.unsqueeze(1)

    def stored_places(self, label: str, size: int) -> Tensor | None:
        """Pairs that turn together stand at j and j + D_k/2, wherever a file has them."""
        return self.rope.places(size) if label == self.compared and self.rope is not None else None

    def with_unit_output(self, w: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Σ |V O|² over the heads gets 1, by a factor of O: GL does not change that."""
        V, O = w[self.value], w[self.output_weight]
        square = ((V.mT @ V) * (O @ O.mT).mT).sum(dim=(-3, -2, -1)) + TINY
        return {**w, self.output_weight: O * square.rsqrt()[..., None, None, None]}

    def __call__(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"], number: int = 0
    ) -> Float[Tensor, "n *s t r"]:
        """Σ_i softmax(X W^(Q,i) (X W^(K,i))ᵀ / √D_k) X W^(V,i) W^(O,i), and the output's bias."""
        Q, K, V, O = (w[n] for n in (self.query, self.key, self.value, self.output_weight))
        x, given = (
            with_bias_row(tokens) if self.bias_row else tokens for tokens in (x, self.given(w, x))
        )
        grouped = Q.dim() == 5  # n g m z k
        heads = Q.shape[2] if grouped else 1
        q = per_head(x, Q.flatten(1, 2) if grouped else Q)
        k, v = (per_head(given, part) for part in (K, V))
        if self.normed:
            q, k = (self._normed(part, w[name]) for part, name in ((q, "nQ"), (k, "nK")))
        if self.rope is not None and (not self.turning or self.turning[number]):
            angles = self._rope_of(number).frequencies(q.shape[-1])
            q, k = turned(q, angles), turned(k, angles)
        if grouped:
            k, v = (shared.repeat_interleave(heads, dim=-3) for shared in (k, v))
        out = join_heads(
            attend(q, k, v, self._bias(w, q, number), scale=self.scale, softcap=self.softcap),
            O.flatten(1, 2) if grouped else O,
        )
        if self.constant in w:
            out = out + w[self.constant].view(-1, *(1,) * (out.dim() - 2), out.shape[-1])
        if self.after:
            return after_norm(out, w["nO"], self.norm_eps)
        return out * along_stream(w["nO"], out) if self.scaled else out

    def given(
        self, w: Mapping[str, Tensor], x: Float[Tensor, "n *s t x"]
    ) -> Float[Tensor, "n *s u x"]:
        """What keys and values read: the same tokens."""
        return x

    def _rope_of(self, number: int) -> Rope:
        local = self.local_rope if self.windows and self.windows[number] is not None else None
        rope = local or self.rope
        assert rope is not None
        return rope

    def _normed(
        self, x: Float[Tensor, "n *s h t k"], scale: Float[Tensor, "n *h f j i"]
    ) -> Float[Tensor, "n *s h t k"]:
        if self.together:
            shape = (len(scale), *(1,) * (x.dim() - 4), x.shape[-3], 1, x.shape[-1])
            beside = rms_norm(x.movedim(-3, -2).flatten(-2), self.norm_eps)  # n *s t (h k)
            normed = beside.view(*beside.shape[:-1], x.shape[-3], x.shape[-1]).movedim(-2, -3)
            return normed * scale.reshape(shape)
        shape = (len(scale), *(1,) * (x.dim() - 2), x.shape[-1])
        return rms_norm(x, self.norm_eps) * scale.reshape(shape)

    def _bias(
        self, w: Mapping[str, Tensor], q: Float[Tensor, "n *s h t k"], number: int
    ) -> Tensor | None:
        """Which tokens are seen, or what is added to the scores."""
        heads, tokens = q.shape[-3], q.shape[-2]
        sees = self.sees(tokens, number)
        if self.relative:
            table = w["relative"]  # n u h
            buckets = distance_buckets(tokens, table.shape[1], both=not self.causal)
            bias = table[:, buckets].movedim(-1, 1)  # n h t u
            bias = bias if sees is None else bias.masked_fill(~sees, -torch.inf)
            each = q.flatten(0, -4).shape[0] // len(bias)
            return bias.repeat_interleave(each, dim=0)
        if not self.alibi:
            return sees
        place = torch.arange(tokens, dtype=q.dtype)
        bias = alibi_slopes(heads).to(q.dtype)[:, None, None] * place
        return bias if sees is None else bias.masked_fill(~sees, -torch.inf)

    def sees(self, tokens: int, number: int) -> Bool[Tensor, "t u"] | None:
        """Which tokens (columns) each token (row) sees; None for all. As `transformers` counts.

        Of the w tokens of a window one is the token itself where it sees only earlier ones; where
        it sees both ways it has w on either side.
        """
        window = self.windows[number] if self.windows else None
        if window is None and not self.causal:
            return None
        place = torch.arange(tokens)
        back = place[:, None] - place
        reach = tokens if window is None else window
        return (back >= 0) & (back < reach) if self.causal else back.abs() <= reach


def _bias_unit(name: str, labels: tuple[str, ...]) -> Unit:
    """The bias row of queries or keys."""
    return constant_unit((name,), labels, lambda w: (w[name][..., -1, :].unsqueeze(-1),))


def distance_buckets(
    tokens: int, buckets: int, longest: int = 128, *, both: bool = True
) -> Int[Tensor, "t u"]:
    """The number of each distance of tokens: near ones each, far ones in steps of a logarithm.

    Args:
        tokens: How many.
        buckets: How many numbers there are.
        longest: From this distance on all have the same.
        both: Half of the numbers are for tokens that come later; else those are as near as can be.
    """
    place = torch.arange(tokens)
    back = place[:, None] - place
    away = back.abs() if both else back.clamp_min(0)
    own = buckets // 2 if both else buckets
    near = own // 2
    far = away.clamp_min(1).float() / near  # in float32, as all do it
    steps = (torch.log(far) / math.log(longest / near) * (own - near)).long() + near
    found = torch.where(away < near, away, steps.clamp_max(own - 1))
    return found + own * (back < 0) if both else found


def alibi_slopes(heads: int) -> Float[Tensor, " h"]:
    """How fast the scores of each head fall: a geometric series, made for powers of two.

    Examples:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039], dtype=torch.float64)
    """
    whole = 2 ** int(math.log2(heads))
    base = torch.arange(1, whole + 1, dtype=torch.float64)
    slopes = torch.exp2(-8.0 / whole * base)
    between = torch.arange(1, 2 * (heads - whole) + 1, 2, dtype=torch.float64)
    return torch.cat([slopes, torch.exp2(-4.0 / whole * between)])


def attend(
    q: Float[Tensor, "n *s h t k"],
    k: Float[Tensor, "n *s h u k"],
    v: Float[Tensor, "n *s h u v"],
    bias: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> Float[Tensor, "n *s h t v"]:
    """softmax(q kᵀ / √D_k) v for each head (section "Multi-head Attention").

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        bias: Which tokens (columns) each token (row) sees, or what is added to its score; None
            for nothing.
        scale: Instead of 1/√D_k.
        softcap: Scores s become c tanh(s/c).
    """
    if softcap is not None:
        scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = softcap * torch.tanh(scores / softcap)
        if bias is not None:
            scores = scores.masked_fill(~bias, -torch.inf)
        return scores.softmax(dim=-1) @ v
    # Four axes and no more: torch's fast kernel refuses others, and what it falls back to takes
    # twice as long.
    out = F.scaled_dot_product_attention(
        q.flatten(0, -4), k.flatten(0, -4), v.flatten(0, -4), attn_mask=bias, scale=scale
    )  # (n s) h t v
    return out.reshape(*q.shape[:-1], v.shape[-1])
