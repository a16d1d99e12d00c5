"""The accuracy of a group of nets on the same examples."""

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.tasks import Part
from transformer_nfn.zoo.training.lockstep import Lockstep

BATCH = 64  # examples at once


class Accuracy:
    """Accuracy of the nets whose weights stand in one buffer, read anew at each call."""

    def __init__(self, shape: NetShape, weights: Float[Tensor, "n weights"]) -> None:
        self._net = Lockstep(shape, weights, BATCH, train=False)
        self._like = weights
        self._parts: dict[int, tuple[Part, Tensor, Tensor, Tensor | None]] = {}

    def __call__(self, part: Part) -> Float[Tensor, " n"]:
        """The share of the part's examples that each net gets right."""
        inputs, labels, lengths = self._moved(part)
        nets, count = self._like.shape[0], len(part)
        right = torch.zeros(nets, dtype=torch.int64, device=self._like.device)
        for first in range(0, count, BATCH):
            # The last batch is filled up with the first examples, which are not counted again.
            index = torch.arange(first, first + BATCH, device=inputs.device) % count
            chosen = inputs[index].expand(nets, -1, -1, -1)
            chosen_lengths = None if lengths is None else lengths[index].expand(nets, -1)
            answers = self._net.logits(chosen, chosen_lengths).argmax(dim=-1)
            real = min(BATCH, count - first)
            right += (answers[:, :real] == labels[index[:real]]).sum(dim=1)
        return right.to(torch.float64) / count

    def _moved(self, part: Part) -> tuple[Tensor, Tensor, Tensor | None]:
        key = id(part)
        if key not in self._parts:
            device = self._like.device
            lengths = None if part.lengths is None else part.lengths.to(device)
            # The part is kept, so that its id is not used for another one.
            self._parts[key] = (
                part,
                part.inputs.to(self._like),
                part.labels.to(device),
                lengths,
            )
        return self._parts[key][1:]
