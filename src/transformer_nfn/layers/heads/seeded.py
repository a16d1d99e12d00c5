"""Layers of torch with initial parameters from a generator of one's own."""

import torch
from torch import nn


def seeded_linear(inputs: int, outputs: int, generator: torch.Generator | None) -> nn.Linear:
    """`nn.Linear` with torch's own initial distribution, drawn from the given generator, if any."""
    if generator is None:
        return nn.Linear(inputs, outputs)
    # Made on "meta" first: nn.Linear would draw from torch's global generator.
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=torch.get_default_device())
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer
