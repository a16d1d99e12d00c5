"""Networks with targets, for a `DataLoader`."""

from collections.abc import Callable, Mapping, Sequence
from operator import index as whole_number
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor
from torch.utils.data import Dataset

from transformer_nfn.data.reading import read_net
from transformer_nfn.space import NetBatch, ShapeError, WeightBatch


class WeightDataset(Dataset[tuple[NetBatch, Tensor]]):
    """Pairs of a network and what is to be predicted of it; read when asked for.

    A `DataLoader` collates them, with workers or without.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> from transformer_nfn.data import WeightDataset
        >>> from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch
        >>> spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=2, D_A=5)
        >>> nets = NetBatch(WeightBatch.random(spec, networks=6))
        >>> dataset = WeightDataset(nets, torch.rand(6))
        >>> [len(batch) for batch, _ in DataLoader(dataset, batch_size=4)]
        [4, 2]

    Args:
        networks: A batch, or what `read` makes a network of: paths, for example.
        targets: A number, or a row of numbers, for each; whole numbers are classes.
        read: Gives a batch of one network; `read_net` for files of known families. For workers it
            must pickle, as `StateDictReader` does.

    Raises:
        ShapeError: If there is not one target for each.
    """

    def __init__(
        self,
        networks: NetBatch | WeightBatch | Sequence[Any],
        targets: Tensor | Sequence[float] | Sequence[Sequence[float]],
        read: Callable[[Any], NetBatch] = read_net,
    ) -> None:
        if isinstance(networks, WeightBatch):
            networks = NetBatch(networks)
        self.networks, self.read = networks, read
        self.targets = torch.as_tensor(targets)
        if self.targets.dtype == torch.float64:  # Python's numbers; models have others
            self.targets = self.targets.float()
        if self.targets.dim() == 0 or len(self.targets) != len(networks):
            raise ShapeError(
                f"{len(networks)} networks need as many targets, got {tuple(self.targets.shape)}"
            )

    @staticmethod
    def from_folder(
        folder: str | Path,
        targets: Mapping[str, float],
        read: Callable[[Any], NetBatch] = read_net,
        pattern: str = "*.safetensors",
    ) -> "WeightDataset":
        """The files of a folder that have a target, by name; no tensor is read yet.

        Raises:
            FileNotFoundError: If a file with a target is not there.
        """
        home = Path(folder)
        paths = {path.name: path for path in sorted(home.glob(pattern))}
        if missing := sorted(set(targets) - set(paths)):
            raise FileNotFoundError(
                f"{len(missing)} of {len(targets)} targets have no file {pattern} in {home}, "
                f"{missing[0]!r} for example"
            )
        return WeightDataset([paths[name] for name in targets], list(targets.values()), read)

    def __len__(self) -> int:
        return len(self.networks)

    def __getitem__(self, index: SupportsIndex) -> tuple[NetBatch, Tensor]:
        number = whole_number(index)  # of samplers, which give all kinds
        if not -len(self) <= number < len(self):
            raise IndexError(f"network {number} of {len(self)}")
        one = self.networks[number]
        # Without gradients: a tensor that wants some does not leave a worker's process.
        net = (one if isinstance(one, NetBatch) else self.read(one)).detach()
        if len(net) != 1:
            raise ShapeError(f"what was read of {one!r:.80} has {len(net)} networks, expected one")
        return net, self.targets[number]
