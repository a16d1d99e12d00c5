"""What every model must do."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from transformer_nfn.space import NetBatch


def assert_gradients_reach(model: nn.Module, net: NetBatch) -> None:
    """A loss on the model's output changes every parameter."""
    model(net).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def assert_seeded(make: Callable[[int], nn.Module]) -> None:
    """The same seed gives the same parameters, another others; torch's own generator is left."""
    state = torch.random.get_rng_state()
    first, second, other = (make(seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)


def assert_loss_falls(
    model: nn.Module, nets: NetBatch, target: Tensor, *, rate: float, steps: int
) -> None:
    """A few steps of training bring the loss down."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(nets), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.05
