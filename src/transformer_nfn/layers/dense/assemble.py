"""Add up terms that vary along different axes, in one buffer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from torch import Tensor


@dataclass(frozen=True)
class Term:
    """What one group contributes to one tensor.

    Attributes:
        labels: What the dimensions of `tensor` are: "n", "c", "l" and some of the axes.
        tensor: Its values.
    """

    labels: tuple[str, ...]
    tensor: Tensor

    def view(self, axes: tuple[str, ...]) -> Tensor:
        """As "n c l axes", with length 1 along axes it does not vary along."""
        order, new_axes = _as_seen(self.labels, axes)
        view = self.tensor.permute(order)
        return view[new_axes] if None in new_axes else view


def assemble(terms: Sequence[Term], axes: tuple[str, ...]) -> Tensor:
    """The sum of all terms, "n c l axes", written into the largest of them.

    Terms that vary along few axes are added to each other first, so that the full-size buffer is
    touched as little as possible.
    """
    views = [term.view(axes) for term in terms]
    additions, largest = _additions(tuple(term.labels for term in terms))
    for small, large in additions:
        # A copy of the smaller one is cheap, adding it along a stride is not.
        views[large].add_(views[small].contiguous())
    return views[largest]


@cache
def _as_seen(
    labels: tuple[str, ...], axes: tuple[str, ...]
) -> tuple[list[int], tuple[slice | None, ...]]:
    """The permutation and the index that make a tensor with these labels "n c l axes"."""
    wanted = ("n", "c", "l", *axes)
    order = [labels.index(label) for label in wanted if label in labels]
    return order, tuple(slice(None) if label in labels else None for label in wanted)


@cache
def _additions(labels: tuple[tuple[str, ...], ...]) -> tuple[list[tuple[int, int]], int]:
    """Which term to add to which, in this order, and which then has the sum.

    Each goes to the next larger one that varies along all of its axes.
    """
    by_size = sorted(range(len(labels)), key=lambda i: len(labels[i]))
    pairs = []
    for place, i in enumerate(by_size[:-1]):
        home = next(j for j in by_size[place + 1 :] if set(labels[i]) <= set(labels[j]))
        pairs.append((i, home))
    return pairs, by_size[-1]
