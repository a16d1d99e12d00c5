"""The graph of a network as one row of numbers, for trees and other readers of tables."""

import torch
from jaxtyping import Float64
from torch import Tensor

from transformer_nfn.models.netgraph import by_block, net_graph, quantiles
from transformer_nfn.space import NetBatch

_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def graph_features(net: NetBatch, positions: int = 0) -> Float64[Tensor, "n f"]:
    """Mean, deviation and quantiles of each number of `net_graph` over the nodes or edges.

    Blocks are kept apart. No symmetry of the paper's net changes them, be it in the paper's group
    or beyond it, if LayerNorm's ε is 0.

    Args:
        net: The networks, of one channel.
        positions: How many of the fixed positions count as written rows.
    """
    rows = []
    for part, numbers in net_graph(net, positions).items():
        rows.append(numbers if part == "whole" else _summary(numbers, by_block(part)))
    return torch.cat(rows, dim=1)


def _summary(numbers: Float64[Tensor, "n ..."], blocks: bool) -> Float64[Tensor, "n f"]:
    values = numbers.flatten(2 if blocks else 1, -2).mT  # n (l) f m
    moments = [values.mean(-1, keepdim=True), values.std(-1, correction=0, keepdim=True)]
    ordered = values.sort(dim=-1).values
    return torch.cat([*moments, quantiles(ordered, _QUANTILES)], dim=-1).flatten(1)
