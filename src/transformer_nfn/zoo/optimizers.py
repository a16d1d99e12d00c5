"""The four optimizers of the paper, on flat rows, with a learning rate and an L2 for each net.

The formulas and constants are those of `torch.optim`, where L2 is `weight_decay`: it is added to
the gradient, for biases too.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

OptimizerName = Literal["sgd", "sgdm", "adam", "rmsprop"]


class SGD:
    """w ← w - lr (g + l2 w), or with momentum: b ← 0.9 b + g + l2 w, w ← w - lr b."""

    def __init__(
        self, weights: Float[Tensor, "n weights"], l2: Float[Tensor, "n 1"], momentum: float
    ) -> None:
        self.weights, self.l2, self.momentum = weights, l2, momentum
        self.velocity = torch.zeros_like(weights) if momentum else None

    def step(self, gradient: Float[Tensor, "n weights"], lr: Float[Tensor, "n 1"]) -> None:
        """One update."""
        gradient.addcmul_(self.weights, self.l2)
        if self.velocity is not None:
            gradient = self.velocity.mul_(self.momentum).add_(gradient)
        self.weights.addcmul_(gradient, lr, value=-1)


class RMSprop:
    """v ← 0.99 v + 0.01 g², w ← w - lr g / (√v + 1e-8), where g includes l2 w."""

    def __init__(self, weights: Float[Tensor, "n weights"], l2: Float[Tensor, "n 1"]) -> None:
        self.weights, self.l2 = weights, l2
        self.square = torch.zeros_like(weights)
        self.scratch = torch.empty_like(weights)

    def step(self, gradient: Float[Tensor, "n weights"], lr: Float[Tensor, "n 1"]) -> None:
        """One update."""
        gradient.addcmul_(self.weights, self.l2)
        self.square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        torch.sqrt(self.square, out=self.scratch).add_(1e-8)
        self.weights.addcdiv_(gradient.mul_(lr), self.scratch, value=-1)


class Adam:
    """Adam with (0.9, 0.999) and 1e-8."""

    def __init__(self, weights: Float[Tensor, "n weights"], l2: Float[Tensor, "n 1"]) -> None:
        self.weights, self.l2, self.steps = weights, l2, 0
        self.mean, self.square = torch.zeros_like(weights), torch.zeros_like(weights)
        self.scratch = torch.empty_like(weights)

    def step(self, gradient: Float[Tensor, "n weights"], lr: Float[Tensor, "n 1"]) -> None:
        """One update."""
        self.steps += 1
        gradient.addcmul_(self.weights, self.l2)
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        # Both corrections of the bias are moved into the rate and into 1e-8: one pass less.
        correction = (1 - 0.999**self.steps) ** 0.5
        torch.sqrt(self.square, out=self.scratch).add_(1e-8 * correction)
        torch.mul(self.mean, lr * (correction / (1 - 0.9**self.steps)), out=gradient)
        self.weights.addcdiv_(gradient, self.scratch, value=-1)


Optimizer = SGD | RMSprop | Adam


def make_optimizer(
    name: OptimizerName, weights: Float[Tensor, "n weights"], l2: Float[Tensor, "n 1"]
) -> Optimizer:
    """The optimizer of a group."""
    if name == "adam":
        return Adam(weights, l2)
    if name == "rmsprop":
        return RMSprop(weights, l2)
    return SGD(weights, l2, momentum=0.9 if name == "sgdm" else 0.0)
