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

    def view(self, axes: Sequence[str]) -> Tensor:
        """As "n c l axes", with length 1 along axes it does not vary along."""
        order, new_axes = _as_seen(self.labels, tuple(axes))
        return self.tensor.permute(order)[new_axes]


@cache
def _as_seen(
    labels: tuple[str, ...], axes: tuple[str, ...]
) -> tuple[list[int], tuple[slice | None, ...]]:
    """The permutation and the index that make a tensor with these labels "n c l axes"."""
    wanted = ("n", "c", "l", *axes)
    order = [labels.index(label) for label in wanted if label in labels]
    return order, tuple(slice(None) if label in labels else None for label in wanted)


def assemble(terms: Sequence[Term], axes: Sequence[str]) -> Tensor:
    """The sum of all terms, "n c l axes", written into the largest of them.

    Terms that vary along few axes are added to each other first, so that the full-size buffer is
    touched as little as possible.
    """
    by_size = sorted(terms, key=lambda term: len(term.labels))
    views = [term.view(axes) for term in by_size]
    for i, term in enumerate(by_size[:-1]):
        # The next larger term that varies along all axes of this one, at the latest the largest.
        home = next(
            j for j in range(i + 1, len(views)) if set(term.labels) <= set(by_size[j].labels)
        )
        # A copy of the smaller one is cheap, adding it along a stride is not.
        views[home].add_(views[i].contiguous())
    return views[-1]
