"""Message passing between two sets of nodes, every pair of which has an edge."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.layers.heads.seeded import seeded_linear

#: Standardised numbers end at so many deviations, smoothly.
_FAR = 5.0


class Standardised(nn.Module):
    """Numbers minus their mean, divided by their deviation, both kept from some examples.

    Args:
        shape: Of what has a mean of its own, e.g. blocks and numbers.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("deviation", torch.ones(shape))

    @torch.no_grad()
    def learn(self, examples: Float[Tensor, "n ..."]) -> None:
        """Take mean and deviation from examples, "n l … f" for a shape "l f"."""
        dims = (0, *range(self.mean.dim(), examples.dim() - 1))
        self.mean.copy_(examples.mean(dims))
        self.deviation.copy_(examples.std(dims, correction=0).clamp_min(1e-3))

    def forward(self, numbers: Float[Tensor, "n ..."]) -> Float[Tensor, "n ..."]:
        """The numbers, in the dtype of the module."""
        *lead, f = self.mean.shape
        inner = (1,) * (numbers.dim() - 2 - len(lead))
        mean, deviation = (part.view(*lead, *inner, f) for part in (self.mean, self.deviation))
        return _FAR * torch.tanh((numbers.to(mean) - mean) / (_FAR * deviation))


class NodeEncoder(nn.Module):
    """The first state of a node: an MLP on its numbers.

    Args:
        numbers: f, of each node.
        width: w, of its state.
        generator: The source of initial parameters.
    """

    def __init__(self, numbers: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.first = seeded_linear(numbers, width, generator)
        self.second = seeded_linear(width, width, generator)

    def forward(self, numbers: Float[Tensor, "*n f"]) -> Float[Tensor, "*n w"]:
        """A state for each node."""
        state: Tensor = self.second(self.first(numbers).relu())
        return state


class Messages(nn.Module):
    """Both sets of nodes hear of each other, along edges with numbers.

    An edge's message is ReLU of a linear map of its numbers and of both states. A node adds to its
    state what it makes of mean and maximum of its messages, so the order of nodes does not count.

    Args:
        numbers: f, of each edge.
        width: w, of all states.
        generator: The source of initial parameters.
    """

    def __init__(self, numbers: int, width: int, generator: torch.Generator | None) -> None:
        super().__init__()
        self.edge = seeded_linear(numbers, width, generator)
        self.sender = seeded_linear(width, width, generator)
        self.receiver = seeded_linear(width, width, generator)
        self.to_sender = seeded_linear(2 * width, width, generator)
        self.to_receiver = seeded_linear(2 * width, width, generator)

    def forward(
        self,
        senders: Float[Tensor, "n p w"],
        receivers: Float[Tensor, "n q w"],
        edges: Float[Tensor, "n p q f"],
    ) -> tuple[Float[Tensor, "n p w"], Float[Tensor, "n q w"]]:
        """The new states of senders and receivers."""
        said = self.edge(edges) + self.sender(senders).unsqueeze(2)
        said = torch.relu(said + self.receiver(receivers).unsqueeze(1))  # n p q w
        back, forth = (torch.cat([said.mean(dim), said.amax(dim)], dim=-1) for dim in (2, 1))
        return senders + self.to_sender(back).relu(), receivers + self.to_receiver(forth).relu()


def pooled(states: Float[Tensor, "n p w"]) -> Float[Tensor, "n _"]:
    """Mean, maximum and deviation over the nodes."""
    deviation = (states.var(1, correction=0) + 1e-4).sqrt()
    return torch.cat([states.mean(1), states.amax(1), deviation], dim=-1)
