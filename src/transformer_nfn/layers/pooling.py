"""Tensors summed over symmetric axes, each sum computed once."""

from collections.abc import Mapping
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

    def ordered(self, name: str, order: tuple[str, ...]) -> Tensor:
        """A tensor summed to, and permuted to, the given labels; n, c and l are among them."""
        labels, dims = _summed_then_permuted(self._axes[name], order)
        done = self._done[name]
        if labels not in done:
            # From the smallest sum that still has the labels.
            known, tensor = min(
                ((k, t) for k, t in done.items() if set(labels) <= set(k)),
                key=lambda item: item[1].numel(),
            )
            done[labels] = tensor.sum([3 + i for i, a in enumerate(known) if a not in labels])
        return done[labels].permute(dims)


@cache
def _summed_then_permuted(
    axes: tuple[str, ...], order: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Which of the axes stay, and the permutation of "n c l" and these to `order`."""
    labels = tuple(label for label in axes if label in order)
    return labels, permutation(("n", "c", "l", *labels), order)


@cache
def permutation(labels: tuple[str, ...], order: tuple[str, ...]) -> tuple[int, ...]:
    """Where each label of `order` stands in `labels`. A program has few of these, used often."""
    return tuple(labels.index(label) for label in order)
