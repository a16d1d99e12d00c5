"""Specs with distinct sizes (equal sizes hide transposes), and batches of random weights."""

import torch
from hypothesis import strategies as st

from transformer_nfn.space import BLOCKS, Block, BlockSpec, WeightBatch

seeds = st.integers(0, 2**32 - 1)
blocks = st.sampled_from(sorted(BLOCKS))


@st.composite
def specs(draw: st.DrawFn, block: Block | None = None) -> BlockSpec:
    """All sizes from 2 to 7 and different, so also x, x + 1, k, v, a; D is at least D_k, D_v."""
    block = block or BLOCKS[draw(blocks)]
    symbols = list(dict.fromkeys(axis.symbol for axis in block.axes.values()))
    numbers = draw(st.permutations(range(2, 8)))
    sizes = dict(zip(symbols, numbers, strict=False))
    inner = [symbol for symbol in ("D_k", "D_v") if symbol in sizes]
    largest = max(["D", *inner], key=lambda symbol: sizes[symbol])
    sizes["D"], sizes[largest] = sizes[largest], sizes["D"]
    return BlockSpec(block, **sizes)


@st.composite
def batches(
    draw: st.DrawFn, block: Block | None = None, channels: int | None = None
) -> WeightBatch:
    """Float64 weights of 1 to 3 networks with 1 to 3 blocks and, if not said, 1 to 3 channels."""
    return WeightBatch.random(
        draw(specs(block)),
        networks=draw(st.integers(1, 3)),
        channels=channels or draw(st.integers(1, 3)),
        blocks=draw(st.integers(1, 3)),
        generator=torch.Generator().manual_seed(draw(seeds)),
        dtype=torch.float64,
    )


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
