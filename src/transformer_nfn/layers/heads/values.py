"""Numbers of single heads and neurons that the group leaves alone, and of pairs of them.

A head is free to be Q G and K G⁻ᵀ. So Q Kᵀ is all that counts, and V O. Both are large, but their
norms, spectra and products with each other are functions of small matrices: with q = QᵀQ, k = KᵀK
the eigenvalues of q k are the squared singular values of Q Kᵀ. No D × D matrix is ever made.

Sizes are logarithms of squares, and what compares is relative to the sizes: weights of trained
networks differ by orders of magnitude.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from transformer_nfn.layers.heads.units import Units

#: A square below is nothing: what is relative to it is small, and all gradients are finite.
_NOTHING = 1e-30
#: Shares of a product below are rounding of float32 weights.
_FLOOR = 1e-10
#: log det(ε + q k / tr q k) for each ε says how many singular values are above √ε.
RANK_LEVELS = (1e-1, 1e-2, 1e-3, 1e-5)
#: Numbers of a pair of a written row and a head that reads it.
ROW_VALUES = 4


def nonzero_square(square: Float64[Tensor, "*b"]) -> Float64[Tensor, "*b"]:
    """A square that others can be divided by."""
    return square.clamp_min(0) + _NOTHING


def log_share(square: Float64[Tensor, "*#b"], most: Float64[Tensor, "*#b"]) -> Tensor:
    """The logarithm of the square of a product, relative to that of its factors' sizes."""
    return torch.log(square.clamp_min(0) / most + _FLOOR)


def cosine(inner: Float64[Tensor, "*#b"], sizes: Float64[Tensor, "*#b"]) -> Tensor:
    """An inner product, relative to the root of the product of both sizes."""
    return inner * torch.rsqrt(sizes)


def head_values(units: Units) -> Float64[Tensor, "n h f"]:
    """Numbers of each head.

    Of S = Q Kᵀ: log |S|², its soft ranks, tr S and tr S² relative to |S|. Of W = V O: log |W|² and
    soft ranks. Their coupling: log of |S W|² and |Sᵀ W|², relative to both sizes. Where O writes in
    the basis that is read, also tr W, tr W², tr S W, |W S|² and |W Sᵀ|².
    """
    Q, K, V, O = units.Q, units.K, units.V, units.O
    q, k, v, o = Q.mT @ Q, K.mT @ K, V.mT @ V, O @ O.mT
    scores, values = q @ k, v @ o
    of_s, of_w = nonzero_square(_trace(scores)), nonzero_square(_trace(values))  # |S|², |W|²
    KQ, KV, QV = K.mT @ Q, K.mT @ V, Q.mT @ V
    found = [
        of_s.log(),
        *_soft_ranks(scores),
        *_relative_traces(KQ, of_s),
        of_w.log(),
        *_soft_ranks(values),
        log_share(_trace(KV.mT @ q @ KV @ o), of_s * of_w),
        log_share(_trace(QV.mT @ k @ QV @ o), of_s * of_w),
    ]
    if units.one_basis:
        OQ, OK, OV = (O @ factor for factor in units.without_bias_row)
        found += [
            *_relative_traces(OV, of_w),
            cosine(_trace(KV @ OQ), of_s * of_w),
            log_share(_trace(v @ OQ @ k @ OQ.mT), of_s * of_w),
            log_share(_trace(v @ OK @ q @ OK.mT), of_s * of_w),
        ]
    return torch.stack(found, dim=-1)


def neuron_values(units: Units) -> Float64[Tensor, "n a f"]:
    """Numbers of each neuron: what it reads and writes with, how large and how aligned.

    log of |column|² of each reader and of |row|² of the writer; the bias relative to column and
    bias; the cosine of two readers; and, where they share a basis, of reader and writer.
    """
    squares = [nonzero_square(reader.square().sum(-2)) for reader in units.readers]
    written = nonzero_square(units.writer.square().sum(-1))
    found = [square.log() for square in (*squares, written)]
    if units.bias is not None:
        found.append(cosine(units.bias, squares[0] + units.bias.square()))
    if len(units.readers) == 2:
        first, second = units.readers
        found.append(cosine((first * second).sum(-2), squares[0] * squares[1]))
    if units.one_basis:
        for reader, square in zip(units.readers, squares, strict=True):
            found.append(cosine((reader * units.writer.mT).sum(-2), square * written))
    return torch.stack(found, dim=-1)


def head_to_neuron_values(units: Units) -> Float64[Tensor, "n h a f"]:
    """How much of each head each neuron reads: log |V O a|² for each column a, relative to both."""
    v = units.V.mT @ units.V
    of_w = nonzero_square(_trace(v @ (units.O @ units.O.mT))).unsqueeze(-1)  # n h 1
    found = []
    for reader in units.readers:
        # All heads in one matrix: a batched product would copy the reader for each.
        read = (units.O.flatten(1, 2) @ reader).view(*units.O.shape[:3], reader.shape[-1])
        square = (read * (v @ read)).sum(-2)  # n h a
        own = nonzero_square(reader.square().sum(-2)).unsqueeze(1)  # n 1 a
        found.append(log_share(square, of_w * own))
    return torch.stack(found, dim=-1)


def row_to_head_values(rows: Float64[Tensor, "n m x"], units: Units) -> Float64[Tensor, "n m h 4"]:
    """How each head reads each row r that was written before it.

    log of |r S|², |r Sᵀ|² and |r W|², relative to the sizes of r, S and W, and the cosine of r S
    with r itself: whether a token looks at its like.
    """
    Q, K, V, O = units.Q, units.K, units.V, units.O
    q, k, v, o = Q.mT @ Q, K.mT @ K, V.mT @ V, O @ O.mT
    of_s, of_w = (nonzero_square(_trace(x @ y)).unsqueeze(1) for x, y in ((q, k), (v, o)))  # n 1 h
    own = nonzero_square(rows.square().sum(-1)).unsqueeze(-1)  # n m 1
    asks, offers, gives = (_through_heads(rows, factor) for factor in units.without_bias_row)
    scores, reverse, values = (
        ((part @ gram) * part).sum(-1).transpose(1, 2)
        for part, gram in ((asks, k), (offers, q), (gives, o))
    )  # n m h
    itself = (asks * offers).sum(-1).transpose(1, 2)
    return torch.stack(
        [
            log_share(scores, of_s * own),
            log_share(reverse, of_s * own),
            log_share(values, of_w * own),
            cosine(itself, nonzero_square(scores) * own),
        ],
        dim=-1,
    )


def _through_heads(
    rows: Float64[Tensor, "n m x"], factor: Float64[Tensor, "n h x k"]
) -> Float64[Tensor, "n h m k"]:
    """Rows times the factor of each head; the heads side by side, so that no row is copied."""
    beside = rows @ factor.transpose(1, 2).flatten(2)  # n m (h k)
    return beside.view(*rows.shape[:2], factor.shape[1], factor.shape[3]).transpose(1, 2)


def _trace(matrix: Float64[Tensor, "*b s s"]) -> Float64[Tensor, "*b"]:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _soft_ranks(product: Float64[Tensor, "*b s s"]) -> list[Float64[Tensor, "*b"]]:
    """Mean log of ε and an eigenvalue's share of the trace, for each ε."""
    share = product / nonzero_square(_trace(product))[..., None, None]
    eye = torch.eye(product.shape[-1], dtype=product.dtype, device=product.device)
    return [
        torch.linalg.slogdet(level * eye + share)[1] / product.shape[-1] for level in RANK_LEVELS
    ]


def _relative_traces(
    small: Float64[Tensor, "*b s s"], of_product: Float64[Tensor, "*b"]
) -> tuple[Tensor, Tensor]:
    """Tr S / |S| and tr S² / |S|² of a product S = X Y, from the small Y X and |S|²."""
    return cosine(_trace(small), of_product), cosine(_trace(small @ small), of_product.square())
