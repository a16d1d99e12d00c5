"""A network as a graph: heads and neurons as nodes, products along its chain as edges."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from jaxtyping import Float64
from torch import Tensor

from transformer_nfn.layers import (
    ROW_VALUES,
    Units,
    cosine,
    head_to_neuron_values,
    head_values,
    neuron_values,
    nonzero_square,
    row_to_head_values,
    units_of,
)
from transformer_nfn.models.gauge import canonical
from transformer_nfn.models.parts import own_weights
from transformer_nfn.space import NetBatch, sine_positions

#: Quantiles of a spectrum that stand for it, whatever the size of the matrix. Not 0: a matrix
#: without its means has a singular value 0.
SPECTRUM = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
_SMALL = 1e-8  # of the sum of squares: singular values below it are not told apart


def net_graph(net: NetBatch, positions: int = 0) -> dict[str, Float64[Tensor, "n ..."]]:
    """Numbers of all nodes and edges, each tensor "n …, f" with f numbers for a node or an edge.

    They are the same for all networks of one orbit, up to the order of nodes: of the paper's group
    and, for its nets, of all symmetries beyond it, if LayerNorm's ε is 0 (see `canonical`).

    ==================  ============  ====================================================
    inputs              n m f         rows of the embedding and positions, into block 0
    inputs_to_heads     n m h f       how block 0 reads them
    heads               n l h f       heads, and how they read what is written in any case
    heads_to_neurons    n l h a f     how the neurons of a block read its heads
    neurons             n l a f       neurons
    neurons_to_heads    n l-1 a h f   how a block reads the neurons of the one before
    neurons_to_hidden   n a u f       how the classifier reads the last block
    hidden              n u f         hidden neurons of the classifier
    hidden_to_classes   n u o f       its last matrix
    classes             n o f         its last bias
    whole               n f           spectra of the matrices of the MLPs
    ==================  ============  ====================================================

    Parts that the networks do not have are left out.

    Args:
        net: The networks, of one channel.
        positions: How many of the fixed positions count as written rows.
    """
    net = canonical(own_weights(net))
    units = [units_of(net.blocks, block) for block in range(net.blocks.blocks)]
    graph = {
        "heads": torch.stack(
            [
                torch.cat([head_values(one), _constants(net, units, block)], dim=-1)
                for block, one in enumerate(units)
            ],
            dim=1,
        ),
        "heads_to_neurons": torch.stack([head_to_neuron_values(one) for one in units], dim=1),
        "neurons": torch.stack([neuron_values(one) for one in units], dim=1),
    }
    if len(units) > 1:
        pairs = [row_to_head_values(one.writer, after) for one, after in pairwise(units)]
        graph["neurons_to_heads"] = torch.stack(pairs, dim=1)
    rows, kinds = _inputs(net, positions)
    if rows.shape[1]:
        graph["inputs"] = torch.stack([nonzero_square(rows.square().sum(-1)).log(), kinds], dim=-1)
        graph["inputs_to_heads"] = row_to_head_values(rows, units[0])
    if net.classifier:
        graph |= _classifier(net.classifier, units[-1])
    graph["whole"] = _whole(net, units)
    return graph


def by_block(part: str) -> bool:
    """Whether a part of the graph has an axis of blocks, the second."""
    return part in ("heads", "neurons", "heads_to_neurons", "neurons_to_heads")


def _inputs(
    net: NetBatch, positions: int
) -> tuple[Float64[Tensor, "n m x"], Float64[Tensor, "n m"]]:
    """What is written before the first block, and which of it are positions."""
    D, some = net.blocks.spec.sizes["D"], next(iter(net.blocks.tensors.values()))
    fixed = sine_positions(positions, D).to(some) if positions else some.new_empty(0, D)
    fixed = (fixed - fixed.mean(dim=-1, keepdim=True)).expand(net.blocks.networks, -1, -1)
    rows = [net.embedding["weight"]] if "weight" in net.embedding else []
    kinds = [torch.zeros_like(weight[..., 0]) for weight in rows]
    return torch.cat([*rows, fixed], dim=1), torch.cat([*kinds, torch.ones_like(fixed[..., 0])], 1)


def _constants(net: NetBatch, units: list[Units], block: int) -> Float64[Tensor, "n h f"]:
    """How the heads of a block read the biases written before it, zeros where there are fewer."""
    one = units[block]
    before = units[block - 1].constants if block else tuple(_bias(net))
    read = [row_to_head_values(row.unsqueeze(1), one)[:, 0] for row in before]  # n h 4
    missing = len(one.constants) - len(read)
    read += [one.Q.new_zeros(*one.Q.shape[:2], ROW_VALUES)] * missing
    return torch.cat([one.Q.new_empty(*one.Q.shape[:2], 0), *read], dim=-1)


def _bias(net: NetBatch) -> list[Tensor]:
    return [net.embedding["bias"]] if "bias" in net.embedding else []


def _classifier(part: Mapping[str, Tensor], last: Units) -> dict[str, Float64[Tensor, "n ..."]]:
    first, second = part["weight1"], part["weight2"]  # n x u, n u o
    reads, writes = (
        nonzero_square(first.square().sum(-2)),
        nonzero_square(second.square().sum(-1)),
    )  # n u
    written = nonzero_square(last.writer.square().sum(-1))  # n a
    hidden = [
        reads.log(),
        writes.log(),
        cosine(part["bias1"], reads + part["bias1"].square()),
    ]
    for constant in last.constants:
        inner = (constant.unsqueeze(1) @ first).squeeze(1)  # n u
        hidden.append(
            cosine(inner, nonzero_square(constant.square().sum(-1, keepdim=True)) * reads)
        )
    cosines = cosine(last.writer @ first, written.unsqueeze(2) * reads.unsqueeze(1))
    shares = cosine(second, writes.unsqueeze(2))  # n u o
    return {
        "neurons_to_hidden": cosines.unsqueeze(-1),
        "hidden": torch.stack(hidden, dim=-1),
        "hidden_to_classes": shares.unsqueeze(-1),
        "classes": torch.stack(
            [part["bias2"], nonzero_square(second.square().sum(-2)).log()], dim=-1
        ),
    }


def _whole(net: NetBatch, units: list[Units]) -> Float64[Tensor, "n f"]:
    """Spectra of all matrices that no head has a part in, and sizes of what is always written."""
    matrices = [matrix for one in units for matrix in (*one.readers, one.writer)]
    if "weight" in net.embedding:
        matrices.append(net.embedding["weight"])
    if net.classifier:
        first, second = net.classifier["weight1"], net.classifier["weight2"]
        matrices += [first, second, units[-1].writer @ first]
    sizes = [
        nonzero_square(constant.square().sum(-1, keepdim=True)).log()
        for constant in (*_bias(net), *(c for one in units for c in one.constants))
    ]
    return torch.cat([*(_spectrum(matrix) for matrix in matrices), *sizes], dim=-1)


def _spectrum(matrix: Float64[Tensor, "n i j"]) -> Float64[Tensor, "n f"]:
    """Log of the sum of squares, and quantiles of log shares of it."""
    squares = torch.linalg.svdvals(matrix).square()  # n s
    total = squares.sum(-1, keepdim=True)
    shares = torch.log(squares / nonzero_square(total) + _SMALL).flip(-1)  # from the smallest
    return torch.cat([nonzero_square(total).log(), quantiles(shares, SPECTRUM)], dim=-1)


def quantiles(
    ordered: Float64[Tensor, "*b m"], shares: tuple[float, ...]
) -> Float64[Tensor, "*b q"]:
    """Quantiles of numbers that are in order already."""
    place = torch.tensor(shares, dtype=torch.float64) * (ordered.shape[-1] - 1)
    below, above = ordered[..., place.floor().long()], ordered[..., place.ceil().long()]
    return below.lerp(above, place.frac().to(ordered))
