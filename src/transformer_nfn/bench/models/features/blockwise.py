"""Features of blocks that mean the same whatever the sizes: to read other zoos than one's own.

Embedding and classifier are left out, and so are the biases that only one kind of block has.
"""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.features.spectra import (
    by_chunks,
    check_owned,
    norm,
    product_singular_values,
    summary_of,
)
from transformer_nfn.space import NetBatch

_TINY = 1e-30  # below every norm that matters; keeps ratios and logarithms of 0 finite
_HARDLY = (
    0.01  # a neuron through which less than this share of the mean passes does hardly anything
)


def blockwise(examples: Examples) -> Float32[np.ndarray, "n f"]:
    """What blocks of any size have in common: see `blockwise_values`."""
    return by_chunks(examples, blockwise_values)


def blockwise_values(nets: NetBatch) -> Float64[Tensor, "n f"]:
    """Invariants of blocks, as many for every number of blocks, heads, neurons and D, in float64.

    All are invariant under the group of the block, and norms are divided by what they are for
    random weights of variance 1, so that wide and narrow nets compare. Of each block, then those
    of the first block, of the last, and the mean over all:

    - of each head, then least, mean and greatest over heads: log-norm, spread of singular values
      (`_spread`) of Q Kᵀ and V O; how far Q Kᵀ is from symmetric, and its trace; how much of the
      norms is left in the products Q Kᵀ V O and V O A. Not the trace of the first product: where no
      skip connection fixes them, the outputs of O may be permuted.
    - of neurons: the summary of log(|column of A| |row of B|) and of bA against |column of A|; the
      likeness of columns of A; the share that can never fire, or passes hardly anything on;
    - of A and B: log-norm, condition, spread of singular values; |bB| against |B|.

    Last, of each pair of neighbours, the mean over pairs, 0 with a single block: what is left of
    the norms in B Q Kᵀ Bᵀ and B V O, with the B of the block before, and their spread.
    """
    check_owned(nets)
    names = ("Q", "K", "V", "O", "A", "B", "bA", "bB")
    blocks = {name: nets.blocks[name][:, 0].double() for name in names}  # n l …
    D = blocks["O"].shape[-1]
    for name in ("Q", "K", "V"):  # without the row of biases of the residual block
        blocks[name] = blocks[name][..., :D, :]
    each = torch.cat([_heads(blocks), _neurons(blocks), _matrices(blocks)], -1)  # n l f
    parts = [each[:, 0], each[:, -1], each.mean(1), _neighbours(blocks)]
    return torch.cat(parts, 1)


def _heads(blocks: Mapping[str, Tensor]) -> Float64[Tensor, "n l f"]:
    Q, K, V, O = (blocks[name] for name in ("Q", "K", "V", "O"))  # n l h …
    scores, values = product_singular_values(Q, K), product_singular_values(V, O.mT)  # n l h s
    QK, VO = Q @ K.mT, V @ O  # n l h x y
    size, through = norm(scores, -1), norm(values, -1)  # n l h
    D, D_k, D_v, D_A = Q.shape[-2], Q.shape[-1], V.shape[-1], blocks["A"].shape[-1]
    A = blocks["A"].unsqueeze(2)  # n l 1 x a
    features = [
        _log(size / (D * D_k**0.5)),
        _log(through / (D * D_v**0.5)),
        *_spread(scores),
        *_spread(values),
        # ‖M − Mᵀ‖² / 4‖M‖²: 0 if symmetric, 1 if antisymmetric.
        (1 - _ratio((QK * QK.mT).sum((-2, -1)), size**2)) / 2,
        _ratio(QK.diagonal(dim1=-2, dim2=-1).sum(-1), size) / D_k**0.5,
        _ratio(norm(QK @ VO, (-2, -1)), size * through) * D**0.5,
        _ratio(norm(VO @ A, (-2, -1)), through * norm(A, (-2, -1))) * min(D, D_A) ** 0.5,
    ]
    return _over_heads(torch.stack(features, -1))


def _neurons(blocks: Mapping[str, Tensor]) -> Float64[Tensor, "n l f"]:
    A, B, bA = blocks["A"], blocks["B"], blocks["bA"]
    D, D_A = A.shape[-2:]
    incoming, outgoing = norm(A, -2), norm(B, -1)  # n l a
    passed = incoming * outgoing
    bias = _against(bA, incoming)
    columns = A / incoming.clamp_min(_TINY).unsqueeze(-2)
    likeness = columns.mT @ columns  # n l a a
    likeness = likeness - torch.diag_embed(likeness.diagonal(dim1=-2, dim2=-1))
    pairs = max(D_A * (D_A - 1), 1)
    features = [
        likeness.sum((-2, -1)) / pairs,
        D * (likeness**2).sum((-2, -1)) / pairs,  # 1 for random columns
        likeness.amax((-2, -1)),
        (bA < -(D**0.5) * incoming).double().mean(-1),  # what comes in has norm √D at most
        (passed <= _HARDLY * passed.mean(-1, keepdim=True)).double().mean(-1),
    ]
    return torch.cat(
        [summary_of(_log(passed / D)), summary_of(bias), torch.stack(features, -1)], -1
    )


def _matrices(blocks: Mapping[str, Tensor]) -> Float64[Tensor, "n l f"]:
    features = [_against(norm(blocks["bB"], -1), norm(blocks["B"], (-2, -1)))]
    for name in ("A", "B"):
        values = torch.linalg.svdvals(blocks[name])  # n l s
        largest = values[..., 0]
        features += [
            _log(norm(values, -1) / (blocks[name].shape[-1] * blocks[name].shape[-2]) ** 0.5),
            _log(_ratio(values[..., -1], largest).clamp_min(1e-6)),  # below is rounding
            *_spread(values),
        ]
    return torch.stack(features, -1)


def _neighbours(blocks: Mapping[str, Tensor]) -> Float64[Tensor, "n f"]:
    """How the output of each block meets the heads of the next."""
    B = blocks["B"][:, :-1].unsqueeze(2)  # n l 1 a x
    Q, K, V, O = (blocks[name][:, 1:] for name in ("Q", "K", "V", "O"))  # n l h …
    if B.shape[1] == 0:
        return B.new_zeros(len(B), 3 * 8)
    size = norm(B, (-2, -1))
    root = min(B.shape[-2:]) ** 0.5
    scores, met = product_singular_values(Q, K), product_singular_values(B @ Q, B @ K)
    values, passed = product_singular_values(V, O.mT), product_singular_values(B @ V, O.mT)
    features = [
        _ratio(norm(met, -1), size**2 * norm(scores, -1)) * root**2,
        _ratio(norm(passed, -1), size * norm(values, -1)) * root,
        *_spread(met),
        *_spread(passed),
    ]
    return _over_heads(torch.stack(features, -1)).mean(1)


def _spread(values: Float64[Tensor, "*b s"]) -> list[Float64[Tensor, "*b"]]:
    """Effective rank, stable rank, share of the largest; each 1 or 1/s where all are equal."""
    count = values.shape[-1]
    relative = values / values[..., :1].clamp_min(_TINY)
    squares = (relative**2).sum(-1)
    effective = _ratio(squares**2, (relative**4).sum(-1)) / count
    return [effective, squares / count, _ratio(relative[..., 0], relative.sum(-1))]


def _over_heads(features: Float64[Tensor, "n l h f"]) -> Float64[Tensor, "n l 3*f"]:
    """Least, mean and greatest: the group permutes heads."""
    return torch.cat([features.amin(2), features.mean(2), features.amax(2)], -1)


def _log(values: Float64[Tensor, "*b"]) -> Float64[Tensor, "*b"]:
    return values.clamp_min(_TINY).log()


def _against(bias: Float64[Tensor, "*b"], weight: Float64[Tensor, "*b"]) -> Float64[Tensor, "*b"]:
    """−1 to 1, the sine of the angle between both: a weight may have decayed to nothing."""
    return _ratio(bias, torch.hypot(bias, weight))


def _ratio(above: Float64[Tensor, "*b"], below: Float64[Tensor, "*b"]) -> Float64[Tensor, "*b"]:
    return above / below.clamp_min(_TINY)
