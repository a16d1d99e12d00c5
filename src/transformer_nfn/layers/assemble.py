"""Add up terms that vary along different axes, in one buffer."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        wanted = ("n", "c", "l", *axes)
        present = [self.labels.index(label) for label in wanted if label in self.labels]
        view = self.tensor.permute(present)
        for position, label in enumerate(wanted):
            if label not in self.labels:
                view = view.unsqueeze(position)
        return view


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
        views[home].add_(views[i])
    return views[-1]
