"""Symmetries of the zoo's net beyond the paper's group (docs/reference/symmetries.md), one by one.

LayerNorm's ε is 0: a positive ε breaks its scale symmetry. Each has a control that is none.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.nets import paper_nets
from tests.strategies import generator
from transformer_nfn.group import relative_error
from transformer_nfn.space import NetBatch, WeightBatch, apply_paper_net, sine_positions

NET = paper_nets(3)
TOKENS, D = 7, 32
PATCHES = torch.randn(3, TOKENS, 16, dtype=torch.float64, generator=generator(1))
ONES = torch.ones(D, 1, dtype=torch.float64)


def change(net: NetBatch) -> float:
    """How far the function of a changed net is from NET's."""
    expected = apply_paper_net(NET, PATCHES, eps=0.0)
    return relative_error(apply_paper_net(net, PATCHES, eps=0.0), expected)


def same(net: NetBatch) -> bool:
    return change(net) <= 1e-10


def different(net: NetBatch) -> bool:
    return change(net) > 1e-3


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(2))


def rotation(fixed: Tensor) -> Tensor:
    """A random orthogonal matrix that fixes the columns of `fixed`."""
    basis = torch.linalg.svd(fixed)[0][:, torch.linalg.matrix_rank(fixed) :]  # D m
    inner = torch.linalg.qr(normal(basis.shape[1], basis.shape[1]))[0]
    eye = torch.eye(D, dtype=torch.float64)
    return eye - basis @ basis.T + basis @ inner @ basis.T


def stretched() -> Tensor:
    """Fixes the vector of ones, but is not orthogonal."""
    centred = torch.eye(D, dtype=torch.float64) - ONES @ ONES.T / D
    return rotation(ONES) @ (
        torch.eye(D, dtype=torch.float64) + 0.5 * centred @ normal(D, D) @ centred
    )


def edit(net: NetBatch, block: int, **changes: Callable[[Tensor], Tensor]) -> NetBatch:
    """Replace tensors of one block, or of embedding and classifier, by a function of them."""
    tensors = {name: tensor.clone() for name, tensor in net.blocks.tensors.items()}
    parts = {"embedding": dict(net.embedding), "classifier": dict(net.classifier)}
    for name, function in changes.items():
        if name in tensors:
            tensors[name][:, :, block] = function(tensors[name][:, :, block])
        else:
            part, _, key = name.partition("_")
            parts[part][key] = function(parts[part][key])
    return NetBatch(WeightBatch(net.blocks.spec, tensors), **parts)


# Writers into and readers from each LayerNorm: axes of a writer end in D, of a reader start with D.
Net = NetBatch


def at_first(net: Net, write: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Net:
    return edit(net, 0, embedding_weight=write, embedding_bias=write, Q=read, K=read, V=read)


def inside(net: Net, write: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Net:
    return edit(net, 1, O=write, A=read)


def between(net: Net, write: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Net:
    return edit(edit(net, 0, B=write, bB=write), 1, Q=read, K=read, V=read)


def at_last(net: Net, write: Callable[[Tensor], Tensor], read: Callable[[Tensor], Tensor]) -> Net:
    return edit(net, 1, B=write, bB=write, classifier_weight1=read)


def keep(tensor: Tensor) -> Tensor:
    return tensor


AFTER_WEIGHTS = [inside, between, at_last]
ALL = [at_first, *AFTER_WEIGHTS]


def test_positive_scaling_of_relu_neurons() -> None:
    scale = torch.rand(64, dtype=torch.float64, generator=generator(3)) + 0.5
    for block in (0, 1):
        moved = edit(
            NET,
            block,
            A=lambda w: w * scale,
            bA=lambda w: w * scale,
            B=lambda w: w / scale.unsqueeze(1),
        )
        assert same(moved)
    signs = torch.where(torch.arange(64) == 5, -1.0, 1.0).double()
    flipped = edit(
        NET, 0, A=lambda w: w * signs, bA=lambda w: w * signs, B=lambda w: w * signs.unsqueeze(1)
    )
    assert different(flipped)


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_orthogonal_matrices_that_fix_the_ones(norm: Callable[..., NetBatch]) -> None:
    r = rotation(ONES)
    assert same(norm(NET, lambda w: w @ r, lambda w: r.T @ w))


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_minus_one(norm: Callable[..., NetBatch]) -> None:
    """Row sums -1, the paper's other case: -1 on the complement of the ones is such a rotation."""
    assert same(norm(NET, lambda w: -w, lambda w: -w))


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_other_matrices_at_a_layer_norm_change_the_function(norm: Callable[..., NetBatch]) -> None:
    """Negative controls: not orthogonal; orthogonal, but the ones are not fixed."""
    s = stretched()
    assert different(norm(NET, lambda w: w @ s, lambda w: torch.linalg.inv(s) @ w))
    free = torch.linalg.qr(normal(D, D))[0]
    assert different(norm(NET, lambda w: w @ free, lambda w: free.T @ w))


@pytest.mark.parametrize("norm", AFTER_WEIGHTS)
def test_positive_scale_of_what_is_written(norm: Callable[..., NetBatch]) -> None:
    assert same(norm(NET, lambda w: 3.7 * w, keep))
    assert different(norm(NET, lambda w: -3.7 * w, keep))


@pytest.mark.parametrize("norm", ALL)
def test_shift_along_the_ones(norm: Callable[..., NetBatch]) -> None:
    """LayerNorm takes the mean away: writers may add, and readers ignore, multiples of ones."""

    def shift(w: Tensor) -> Tensor:
        return w + normal(*w.shape[:-1], 1)

    def read_shift(w: Tensor) -> Tensor:
        return w + normal(*w.shape[:-2], 1, w.shape[-1])

    assert same(norm(NET, shift, keep))
    assert same(norm(NET, keep, read_shift))
    ramp = torch.arange(D, dtype=torch.float64) / D
    assert different(norm(NET, lambda w: w + ramp, keep))


def test_first_layer_norm_only_what_leaves_the_positions_alone() -> None:
    positions = sine_positions(TOKENS, D).T  # D t
    r = rotation(torch.cat([ONES, positions], dim=1))
    assert relative_error(positions.T @ r, positions.T) < 1e-12
    assert not torch.allclose(r, torch.eye(D, dtype=torch.float64))
    assert same(at_first(NET, lambda w: w @ r, lambda w: r.T @ w))
    any_rotation = rotation(ONES)
    assert different(at_first(NET, lambda w: w @ any_rotation, lambda w: any_rotation.T @ w))


def test_first_layer_norm_has_no_scale() -> None:
    assert different(at_first(NET, lambda w: 3.7 * w, keep))


def test_a_positive_epsilon_breaks_the_scale() -> None:
    """Why ε is 0 above."""
    scaled = inside(NET, lambda w: 1e-2 * w, keep)
    plain = apply_paper_net(NET, PATCHES, eps=1e-2)
    assert relative_error(apply_paper_net(scaled, PATCHES, eps=1e-2), plain) > 1e-3
