"""What takes a group through its passes: compiled code where it can be had, else torch."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.training.compiled import Compiled, Outcome, find_library
from transformer_nfn.zoo.training.lockstep import Lockstep
from transformer_nfn.zoo.training.masks import Masks

#: Tokens of all nets in one pass on a CPU. A larger batch is cut into parts whose gradients are
#: added up, since buffers of more than this do not stay in the cache.
CPU_ROWS = 4096


@runtime_checkable
class Engine(Protocol):
    """n nets of one shape, whose weights are read anew in each pass."""

    def logits(
        self, inputs: Float[Tensor, "b t p"], lengths: Int64[Tensor, " b"] | None
    ) -> Float[Tensor, "n b classes"]:
        """Answers of all nets to the same sequences; used before the next pass."""

    def step(
        self,
        inputs: Float[Tensor, "n b t p"],
        labels: Int64[Tensor, "n b"],
        lengths: Int64[Tensor, "n b"] | None,
        masks: Masks | None,
    ) -> Outcome:
        """Forward and backward of each net on its own batch."""


class InTorch:
    """`Lockstep`, on a CPU in parts of the batch that stay in the cache."""

    def __init__(self, shape: NetShape, weights: Float[Tensor, "n weights"], batch: int) -> None:
        self.weights, self.tokens, self.batch = weights, shape.tokens, batch
        self.part_size = batch
        if weights.device.type == "cpu":
            sizes = [b for b in range(1, batch + 1) if batch % b == 0]
            fitting = [b for b in sizes if b * shape.tokens * len(weights) <= CPU_ROWS]
            self.part_size = max(fitting, default=1)
        self._shape, self._passes = shape, dict[tuple[int, bool], Lockstep]()

    def logits(
        self, inputs: Float[Tensor, "b t p"], lengths: Int64[Tensor, " b"] | None
    ) -> Float[Tensor, "n b classes"]:
        """Answers of all nets to the same sequences; used before the next pass."""
        n = len(self.weights)
        own = None if lengths is None else lengths.expand(n, -1)
        return self._lockstep(len(inputs), train=False).logits(inputs.expand(n, -1, -1, -1), own)

    def step(
        self,
        inputs: Float[Tensor, "n b t p"],
        labels: Int64[Tensor, "n b"],
        lengths: Int64[Tensor, "n b"] | None,
        masks: Masks | None,
    ) -> Outcome:
        """Forward and backward of each net on its own batch, some sequences at a time."""
        assert labels.shape[1] == self.batch
        net = self._lockstep(self.part_size, train=True)
        assert net.flat_gradient is not None
        losses = self.weights.new_zeros(len(labels), dtype=torch.float64)
        rights = torch.zeros_like(losses, dtype=torch.int64)
        for first in range(0, labels.shape[1], self.part_size):
            part = slice(first, first + self.part_size)
            own = None if lengths is None else lengths[:, part]
            some = None
            if masks is not None:
                some = masks.part(part.start * self.tokens, part.stop * self.tokens)
            log_p = net.logits(inputs[:, part], own, some).log_softmax(dim=-1)
            target = labels[:, part].unsqueeze(-1)
            losses -= log_p.gather(2, target).sum(dim=(1, 2))
            rights += (log_p.argmax(dim=-1) == labels[:, part]).sum(dim=1)
            g = log_p.exp_()
            g.scatter_add_(2, target, g.new_full((), -1.0).expand(target.shape))
            net.backward(g.div_(self.batch), add=first > 0)
        return Outcome(net.flat_gradient, losses, rights)

    def _lockstep(self, batch: int, *, train: bool) -> Lockstep:
        if (batch, train) not in self._passes:
            self._passes[batch, train] = Lockstep(self._shape, self.weights, batch, train=train)
        return self._passes[batch, train]


def make_engine(shape: NetShape, weights: Float[Tensor, "n weights"], batch: int) -> Engine:
    """The fastest that can run such nets where their weights are."""
    library = find_library(shape, weights.device, weights.dtype)
    return InTorch(shape, weights, batch) if library is None else Compiled(shape, weights, library)
