"""A tensor of weights as vectors along one axis, for whatever acts on that axis alone."""

from dataclasses import dataclass

from torch import Tensor

from transformer_nfn.space.axes import Index


@dataclass(frozen=True)
class AxisView:
    """Reorders "n c l axes…" to "n l per… vectors axis" and back.

    Examples:
        >>> import torch
        >>> from transformer_nfn.space import AxisView, parse_indices
        >>> view = AxisView(parse_indices("h v* r"), "v", per=("h",))
        >>> view.unfold(torch.zeros(7, 1, 2, 3, 5, 4)).shape  # n c l h v r -> n l h (c r) v
        torch.Size([7, 2, 3, 4, 5])
    """

    indices: tuple[Index, ...]
    label: str
    per: tuple[str, ...] = ()

    @property
    def order(self) -> list[int]:
        """Dimensions of the tensor as n, l, those of `per`, c and all others, the axis itself."""
        labels = [index.label for index in self.indices]
        outer = [3 + labels.index(label) for label in self.per]
        axis = 3 + labels.index(self.label)
        rest = [dim for dim in range(3, 3 + len(labels)) if dim not in (*outer, axis)]
        return [0, 2, *outer, 1, *rest, axis]

    def unfold(self, tensor: Tensor) -> Tensor:
        """To vectors along the axis."""
        return tensor.permute(self.order).flatten(2 + len(self.per), -2)

    def fold(self, vectors: Tensor, shape: tuple[int, ...]) -> Tensor:
        """From vectors back to a tensor of the given shape "n c l axes…"."""
        order = self.order
        inverse = [order.index(dim) for dim in range(len(order))]
        return vectors.reshape([shape[dim] for dim in order]).permute(inverse)
