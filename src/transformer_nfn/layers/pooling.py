"""Tensors summed over symmetric axes, each sum computed once."""

from collections.abc import Collection, Mapping
from functools import cache

from torch import Tensor

#: Axes of a tensor after "n c l", and the tensor.
Labelled = tuple[tuple[str, ...], Tensor]


class Pools:
    """Sums of labelled tensors "n c l axes" over some of their axes."""

    def __init__(self, tensors: Mapping[str, Labelled]) -> None:
        """Start from the tensors as they are."""
        self._axes = {name: labels for name, (labels, _) in tensors.items()}
        self._done = {name: {labels: tensor} for name, (labels, tensor) in tensors.items()}

    def pooled(self, name: str, keep: Collection[str]) -> Labelled:
        """The tensor summed over all axes but those in `keep`."""
        done = self._done[name]
        labels = tuple(label for label in self._axes[name] if label in keep)
        if labels not in done:
            # From the smallest sum that still has the labels.
            known, tensor = min(
                ((k, t) for k, t in done.items() if set(labels) <= set(k)),
                key=lambda item: item[1].numel(),
            )
            dims = [3 + i for i, label in enumerate(known) if label not in labels]
            done[labels] = tensor.sum(dims)
        return labels, done[labels]

    def ordered(self, name: str, order: tuple[str, ...]) -> Tensor:
        """The tensor summed to, and permuted to, the given labels; n, c and l are among them."""
        labels, tensor = self.pooled(name, order)
        return tensor.permute(permutation(("n", "c", "l", *labels), order))


@cache
def permutation(labels: tuple[str, ...], order: tuple[str, ...]) -> tuple[int, ...]:
    """Where each label of `order` stands in `labels`. A program has few of these, used often."""
    return tuple(labels.index(label) for label in order)
