"""What trees see of a network: its weights, their statistics, its invariants, or no weight at all.

Each function makes one row of numbers for each example, by itself: a row does not depend on the
rows beside it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.features.blockwise import blockwise
from transformer_nfn.bench.models.features.spectra import (
    as_float32,
    by_chunks,
    check_owned,
    norm,
    product_singular_values,
    summary,
    summary_of,
)
from transformer_nfn.models import graph_features
from transformer_nfn.space import NetBatch

#: The optimizers of the zoos, one column each.
OPTIMIZERS = ("sgd", "sgdm", "adam", "rmsprop")
#: The other columns of a run, and the epoch of the checkpoint.
NUMBERS = ("lr", "l2", "dropout", "init_std", "train_fraction", "epoch")


def weights(examples: Examples) -> Float32[np.ndarray, "n f"]:
    """All weights as they are, the paper's input of trees."""
    return np.ascontiguousarray(examples.weights.to(torch.float32).numpy())


def statistics(examples: Examples) -> Float32[np.ndarray, "n f"]:
    """Mean, variance and the quantiles 0, 25, 50, 75 and 100 % of each tensor.

    A tensor is one of a block, of the embedding or of the classifier, all heads together: seven
    numbers for each. After Unterthiner et al., "Predicting neural network accuracy from weights".
    Not invariant: M and N change the spread of Q, K, V and O.
    """
    rows = weights(examples)
    places = examples.shape.stored.values()
    parts = [summary(rows[:, first : first + int(np.prod(dims))]) for first, dims in places]
    return as_float32(np.concatenate(parts, axis=1))


def invariants(examples: Examples) -> Float32[np.ndarray, "n f"]:
    """Numbers that no element of the symmetry group changes: see `invariant_values`."""
    return by_chunks(examples, invariant_values)


def graph(examples: Examples) -> Float32[np.ndarray, "n f"]:
    """Numbers that no symmetry of the whole net changes, known to us: see `graph_features`."""
    return by_chunks(examples, partial(graph_features, positions=examples.shape.tokens))


def hyperparameters(examples: Examples) -> Float32[np.ndarray, "n f"]:
    """How the run was trained and for how long, without any weight: the control for the others.

    The optimizer as one column for each of `OPTIMIZERS`, then `NUMBERS`.

    Raises:
        BenchError: If an optimizer is none of them.
    """
    optimizer = examples.column("optimizer").astype(str)
    unknown = sorted(set(optimizer) - set(OPTIMIZERS))
    if unknown:
        raise BenchError(f"optimizers {', '.join(unknown)}; there is a column for {OPTIMIZERS}")
    columns = [optimizer == name for name in OPTIMIZERS]
    columns += [examples.column(name) for name in NUMBERS]
    return np.stack([column.astype(np.float32) for column in columns], axis=1)


#: The inputs of trees by their names.
FEATURES: Mapping[str, Callable[[Examples], Float32[np.ndarray, "n f"]]] = MappingProxyType(
    {
        "weights": weights,
        "statistics": statistics,
        "invariants": invariants,
        "graph": graph,
        "blockwise": blockwise,
        "hyperparameters": hyperparameters,
    }
)


def invariant_values(nets: NetBatch) -> Float64[Tensor, "n f"]:
    """Invariants of networks of the blocks "paper" and "residual", in float64.

    Of each head, then least, mean and greatest over the heads, since τ permutes them:

    - the singular values and norms of Q Kᵀ and V O, free of M and N, and the product of both norms;
    - the norms of X Q Kᵀ Xᵀ and X V O A, where X is the map into the block: the embedding, or B of
      the block before. A head of a badly conditioned M is no harm: a product's singular values
      come from thin QR of both factors and the SVD of the small core, in float64.

    Of the hidden neurons, which π_A permutes, their summary: |column of A|, |row of B|, the product
    of these, and bA; the same of the rows of A, which π_O permutes. Further the singular values
    and norms of A and B, the summary and norm of bB (and bO), which no symmetry touches, singular
    values and summary of the tensors of embedding and classifier, and the norm of B times the
    classifier's first matrix. A summary is mean, variance and quantiles.

    They do not tell all orbits apart: they are features, not a fingerprint.
    """
    check_owned(nets)
    blocks = {name: nets.blocks[name][:, 0].double() for name in nets.blocks.tensors}  # n l …
    outside = {
        f"{part}.{name}": tensor.double()
        for part in ("embedding", "classifier")
        for name, tensor in getattr(nets, part).items()
    }
    Q, K, V, O, A, B = (blocks[name] for name in ("Q", "K", "V", "O", "A", "B"))
    scores = product_singular_values(Q, K)  # n l h s
    values = product_singular_values(V, O.mT)
    norms = torch.stack([norm(scores, -1), norm(values, -1)], -1)  # n l h 2
    through = _norms_through(blocks, outside.get("embedding.weight"))  # n l h 2
    heads = torch.cat([scores, values, norms, norms.prod(-1, keepdim=True), through], -1)
    incoming, outgoing = norm(A, -2), norm(B, -1)  # n l a
    neurons = (incoming, outgoing, incoming * outgoing, blocks["bA"], norm(A, -1))
    biases = [tensor for name, tensor in blocks.items() if name in ("bB", "bO")]
    parts = [
        heads.amin(2),
        heads.mean(2),
        heads.amax(2),
        *(summary_of(tensor) for tensor in (*neurons, *biases)),  # n l 7
        *(torch.linalg.svdvals(tensor) for tensor in (A, B)),
        torch.stack([norm(tensor, -1) for tensor in (incoming, outgoing, blocks["bA"])], -1),
        *(norm(tensor, -1).unsqueeze(-1) for tensor in biases),
        *(summary_of(tensor.flatten(1)) for tensor in outside.values()),  # n 7
        *(torch.linalg.svdvals(tensor) for tensor in outside.values() if tensor.dim() == 3),
        norm(B[:, -1] @ outside["classifier.weight1"], (-2, -1)).unsqueeze(-1),
    ]
    return torch.cat([part.flatten(1) for part in parts], 1)


def _norms_through(
    blocks: Mapping[str, Tensor], embedding: Float64[Tensor, "n p x"] | None
) -> Float64[Tensor, "n l h 2"]:
    """The norms of X Q Kᵀ Xᵀ and X V O A of each head."""
    D = blocks["O"].shape[-1]
    found = []
    for number in range(blocks["A"].shape[1]):
        # Without the row of biases, which the residual block has below its matrices.
        q, k, v = (blocks[name][:, number, :, :D] for name in ("Q", "K", "V"))  # n h x k
        into = embedding if number == 0 else blocks["B"][:, number - 1]  # n m x
        if into is not None:
            q, k, v = (into.unsqueeze(1) @ factor for factor in (q, k, v))  # n h m k
        out = blocks["O"][:, number] @ blocks["A"][:, number].unsqueeze(1)  # n h v a
        found.append(torch.stack([norm(q @ k.mT, (-2, -1)), norm(v @ out, (-2, -1))], -1))
    return torch.stack(found, 1)
