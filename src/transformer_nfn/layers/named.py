"""Tensors with a label for each dimension, and sums of them that are made once."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Named(NamedTuple):
    """A tensor and a label for each of its dimensions: "n", "c", "e", "l" and axes of a block."""

    labels: tuple[str, ...]
    tensor: Tensor

    def times(self, other: "Named", out: tuple[str, ...]) -> "Named":
        """The product, summed over all labels that are not in `out`."""
        number = {a: i for i, a in enumerate(dict.fromkeys((*self.labels, *other.labels)))}
        tensor = torch.einsum(
            self.tensor,
            [number[a] for a in self.labels],
            other.tensor,
            [number[a] for a in other.labels],
            [number[a] for a in out],
        )
        return Named(out, tensor)

    def order(self, labels: tuple[str, ...]) -> "Named":
        """The same labels in another order, a view."""
        if labels == self.labels:
            return self
        return Named(labels, self.tensor.permute([self.labels.index(a) for a in labels]))

    def keep(self, labels: tuple[str, ...]) -> "Named":
        """Summed over all labels but these, in the order in which they stand."""
        dims = [i for i, a in enumerate(self.labels) if a not in labels]
        if not dims:
            return self
        return Named(tuple(a for a in self.labels if a in labels), self.tensor.sum(dims))

    def matrices(
        self, batch: tuple[str, ...], rows: tuple[str, ...], columns: tuple[str, ...]
    ) -> Tensor:
        """Three groups of its labels, each as one dimension."""
        view = self.order((*batch, *rows, *columns)).tensor
        one, two = len(batch), len(batch) + len(rows)
        shape = [view.shape[:one], view.shape[one:two], view.shape[two:]]
        return view.reshape([part.numel() for part in shape])

    def expand(self, labels: tuple[str, ...], sizes: Mapping[str, int]) -> "Named":
        """With more labels, along which it is constant, a view."""
        missing = tuple(a for a in labels if a not in self.labels)
        tensor = self.tensor[(None,) * len(missing)] if missing else self.tensor
        view = Named((*missing, *self.labels), tensor).order(labels)
        if not sizes:
            return view
        # -1 leaves a length alone; 1 stands for all where a constant is expanded to networks.
        lengths = [
            sizes[a] if a in sizes and n == 1 else -1
            for a, n in zip(labels, view.tensor.shape, strict=True)
        ]
        return Named(labels, view.tensor.expand(lengths))

    def rename(self, labels: Mapping[str, str]) -> "Named":
        """Other names for some labels."""
        return Named(tuple(labels.get(a, a) for a in self.labels), self.tensor)

    def narrow(self, label: str, start: int, length: int) -> "Named":
        """Some entries along one label, a view."""
        return Named(self.labels, self.tensor.narrow(self.labels.index(label), start, length))


class Sums:
    """Named tensors summed over some of their labels, each sum made once."""

    def __init__(self, tensors: Mapping[str, Named]) -> None:
        """Start from the tensors as they are."""
        self._made = {name: [tensor] for name, tensor in tensors.items()}

    def over(self, name: str, labels: tuple[str, ...]) -> Named:
        """A tensor summed to those of the labels that it has, in their order."""
        made = self._made[name]
        kept = tuple(a for a in labels if a in made[0].labels)
        best = made[0]
        for one in made:
            if set(kept) <= set(one.labels) and len(one.labels) < len(best.labels):
                best = one  # what was summed already need not be summed again
        if len(best.labels) > len(kept):
            best = best.keep(kept)
            made.append(best)
        return best.order(kept)
