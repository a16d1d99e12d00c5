"""The first neurons of a block, without reading the others where they have rows of their own."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Matrix
from transformer_nfn.kinship.descent.units import views

#: Neurons of a block; of experts some of each.
UNITS, _EXPERTS = 128, 16
#: Numbers that are read at once where each neuron has a column.
_NUMBERS = 2**22


@dataclass(frozen=True)
class FirstUnits:
    """Where the units of the most numerous axis of a network are.

    Attributes:
        label: The axis.
        tensor: The tensor that reads for them.
        matrix: What of the file it is.
        size: Units of a block, or of an expert.
    """

    label: str
    tensor: str
    matrix: Matrix
    size: int

    @staticmethod
    def of(checkpoint: Checkpoint) -> "FirstUnits | None":
        """None where units have neither rows nor columns of their own."""
        view = max(views(checkpoint.spec), key=lambda one: one.groups * one.size, default=None)
        if view is None:
            return None
        for matrix in checkpoint.family.matrices:
            if matrix.tensors[0] == view.tensor and _way(matrix, view.label) is not None:
                return FirstUnits(view.label, view.tensor, matrix, view.size)
        return None

    def read(self, checkpoint: Checkpoint, number: int) -> Float[Tensor, "g u x"]:
        """Those of a block."""
        names = self.matrix.names(checkpoint.spec.sizes.get("experts", 1))[:_EXPERTS]
        count = min(UNITS // len(names), self.size)
        block = checkpoint.block_name(number)
        return torch.stack([self._rows(checkpoint, block + name, count) for name in names])

    def _rows(self, checkpoint: Checkpoint, name: str, count: int) -> Float[Tensor, "u x"]:
        files = checkpoint.files
        if _way(self.matrix, self.label) == "rows":
            return files.slice(name, 0, count).flatten(1).float()
        step = max(1, _NUMBERS // files.entry(name).shape[1])
        return torch.cat([some[:, :count].float() for some in files.chunks(name, step)]).T


def _way(matrix: Matrix, label: str) -> str | None:
    """Whether the units of an axis are the first rows of a matrix, or its columns."""
    axes = matrix.single.axes
    if axes in (f"{label} x", f"({label} + {label}) x"):
        return "rows"
    return "columns" if axes == f"x {label}" else None
