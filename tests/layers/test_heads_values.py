"""The numbers of heads and neurons, against the large matrices that are never made."""

import pytest
import torch
from torch import Tensor

from tests.strategies import generator
from transformer_nfn.layers import (
    Units,
    head_to_neuron_values,
    head_values,
    neuron_values,
    row_to_head_values,
    units_of,
)
from transformer_nfn.space import BLOCKS, BlockSpec, WeightBatch


def units(block: str) -> Units:
    symbols = dict.fromkeys(axis.symbol for axis in BLOCKS[block].axes.values())
    spec = BlockSpec(BLOCKS[block], **dict(zip(symbols, (7, 3, 2, 4, 5, 6), strict=False)))
    batch = WeightBatch.random(spec, networks=2, blocks=2, generator=generator(0))
    return units_of(batch, 1)


def log_size(matrix: Tensor) -> Tensor:
    return matrix.square().sum((-2, -1)).log()


def cosine(first: Tensor, second: Tensor, dim: int) -> Tensor:
    return torch.nn.functional.cosine_similarity(first, second, dim=dim)


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_numbers_of_a_head(block: str) -> None:
    u = units(block)
    found = head_values(u)
    S, W = u.Q @ u.K.mT, u.V @ u.O
    trace = torch.vmap(torch.vmap(torch.trace))
    sizes = log_size(S) + log_size(W)
    expected = {
        0: log_size(S),
        5: trace(S) / log_size(S).div(2).exp(),
        6: trace(S @ S) / log_size(S).exp(),
        7: log_size(W),
        12: log_size(S @ W) - sizes,
        13: log_size(S.mT @ W) - sizes,
    }
    for start, matrix in ((1, S), (8, W)):
        size = u.Q.shape[-1] if start == 1 else u.V.shape[-1]
        squares = torch.linalg.svdvals(matrix).square()[..., :size]
        share = squares / squares.sum(-1, keepdim=True)
        for place, level in enumerate((1e-1, 1e-2, 1e-3, 1e-5)):
            expected[start + place] = (level + share).log().mean(-1)
    if u.one_basis:
        D = u.O.shape[-1]
        within = W[..., :D, :]
        expected |= {
            14: trace(within) / log_size(W).div(2).exp(),
            15: trace(within @ within) / log_size(W).exp(),
            16: trace(S[..., :D, :] @ W) / (sizes / 2).exp(),
            17: log_size(W @ S[..., :D, :]) - sizes,
            18: log_size(W @ S.mT[..., :D, :]) - sizes,
        }
    assert found.shape[-1] == len(expected)
    for place, value in expected.items():
        torch.testing.assert_close(found[..., place], value, msg=str(place))


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_numbers_of_pairs(block: str) -> None:
    u = units(block)
    S, W = u.Q @ u.K.mT, u.V @ u.O
    for place, reader in enumerate(u.readers):
        for a in range(reader.shape[-1]):
            column = reader[:, None, :, a : a + 1]
            wanted = log_size(W @ column) - log_size(W) - log_size(column)
            torch.testing.assert_close(head_to_neuron_values(u)[:, :, a, place], wanted)
    D = u.O.shape[-1]
    rows = torch.randn(2, 3, D, dtype=torch.float64, generator=generator(1))
    found = row_to_head_values(rows, u)
    for m in range(3):
        row = rows[:, None, m : m + 1]
        by_scores = row @ S[..., :D, :]
        for place, (read, size) in enumerate(
            ((by_scores, S), (row @ S.mT[..., :D, :], S), (row @ W[..., :D, :], W))
        ):
            wanted = log_size(read) - log_size(size) - log_size(row)
            torch.testing.assert_close(found[:, m, :, place], wanted)
        itself = (by_scores[..., :D] * row).sum((-2, -1))
        wanted = itself * torch.exp(-(log_size(by_scores) + log_size(row)) / 2)
        torch.testing.assert_close(found[:, m, :, 3], wanted)


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_numbers_of_a_neuron(block: str) -> None:
    u = units(block)
    found = neuron_values(u)
    expected = [reader.square().sum(1).log() for reader in u.readers]
    expected.append(u.writer.square().sum(2).log())
    if u.bias is not None:
        expected.append(u.bias / (u.bias.square() + u.readers[0].square().sum(1)).sqrt())
    if len(u.readers) == 2:
        expected.append(cosine(*u.readers, dim=1))
    if u.one_basis:
        expected += [cosine(reader, u.writer.mT, dim=1) for reader in u.readers]
    torch.testing.assert_close(found, torch.stack(expected, -1))
