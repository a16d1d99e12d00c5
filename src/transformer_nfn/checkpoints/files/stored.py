"""The tensors of a file by the names that a family's table has for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from transformer_nfn.checkpoints.files.tensors import TensorFiles


@dataclass(frozen=True)
class StoredTensors:
    """Names without what stands before all of them in this file, and settings beside them."""

    files: TensorFiles
    prefix: str
    settings: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.files

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self.files.entry(self.prefix + name).shape

    def read(self, name: str) -> Tensor:
        """A whole tensor."""
        return self.files.read(self.prefix + name)

    def slice(self, name: str, first: int, last: int) -> Tensor:
        """Some rows of a tensor, from the first to the one before the last."""
        return self.files.slice(self.prefix + name, first, last)

    def rows(self, name: str, numbers: list[int]) -> Tensor:
        """Rows by their numbers."""
        return self.files.rows(self.prefix + name, numbers)

    def setting(self, name: str, default: Any) -> Any:
        """A setting of the function; the default where the file says nothing else."""
        return self.settings.get(name, default)
