"""Random nets of the paper's architecture, shared by tests."""

import torch

from tests.strategies import generator
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch

PAPER_SPEC = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)


def paper_nets(networks: int, seed: int = 0) -> NetBatch:
    """The zoo's MNIST net with random weights, in float64: 4×4 patches, two blocks, ten classes."""
    g = generator(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(networks, *shape, generator=g, dtype=torch.float64) / 4

    blocks = WeightBatch.random(
        PAPER_SPEC, networks=networks, blocks=2, generator=g, dtype=torch.float64
    )
    embedding = {"weight": normal(16, 32), "bias": normal(32)}
    classifier = {
        "weight1": normal(32, 32),
        "bias1": normal(32),
        "weight2": normal(32, 10),
        "bias2": normal(10),
    }
    return NetBatch(blocks, embedding, classifier)
