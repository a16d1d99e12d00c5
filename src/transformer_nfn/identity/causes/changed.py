"""Checkpoints with some of their numbers changed, without writing them anywhere."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Entry, OtherNumbers, TensorFiles
from transformer_nfn.identity.comparing.rounding import with_files
from transformer_nfn.space import WeightBatch

Change = Callable[[Tensor], Tensor]


class _Changed(OtherNumbers):
    """Tensors, some of them changed; each has the dtype and the rows that its entry says."""

    def __init__(
        self,
        files: TensorFiles,
        whole: Mapping[str, Change],
        rowwise: Mapping[str, Change],
        entries: Mapping[str, Entry],
    ) -> None:
        super().__init__(files, entries)
        self._whole, self._rowwise = whole, rowwise

    def read(self, name: str) -> Tensor:
        rows, stored = self.entry(name).shape[:1], self.as_stored.entry(name).shape[:1]
        if rows != stored:
            return self.slice(name, 0, *rows)
        return self._change(name, self.as_stored.read(name))

    def slice(self, name: str, first: int, last: int) -> Tensor:
        if name in self._whole:
            return self.read(name)[first:last]
        return self._change(name, self.as_stored.slice(name, first, last))

    def _change(self, name: str, tensor: Tensor) -> Tensor:
        change = self._whole.get(name) or self._rowwise.get(name)
        tensor = tensor if change is None else change(tensor)
        return tensor.to(self.entry(name).dtype)


def with_tensors(
    checkpoint: Checkpoint,
    whole: Mapping[str, Change],
    rowwise: Mapping[str, Change] | None = None,
) -> Checkpoint:
    """The same network with some tensors changed.

    Args:
        checkpoint: The network.
        whole: By the name of a tensor what becomes of it.
        rowwise: The same, where each row is changed by itself.
    """
    return with_files(checkpoint, _Changed(checkpoint.files, whole, rowwise or {}, {}))


def with_blocks(
    checkpoint: Checkpoint, change: Callable[[int, WeightBatch], WeightBatch]
) -> Checkpoint:
    """The same network with the declared tensors of its blocks changed."""
    last: dict[int, dict[str, Tensor]] = {}

    def changed(number: int, name: str) -> Tensor:
        if number not in last:
            last.clear()  # one block at a time is enough: they are read in order
            last[number] = checkpoint.pack(number, change(number, checkpoint.block(number)))
        return last[number][name]

    changes = {
        name: (lambda _, number=number, name=name: changed(number, name))
        for number in range(checkpoint.blocks)
        for name in checkpoint.matrix_names(number)
        if name in checkpoint.files
    }
    return with_tensors(checkpoint, changes)


def stored_as(checkpoint: Checkpoint, dtypes: Mapping[str, torch.dtype]) -> Checkpoint:
    """The same network as if some tensors were stored in another dtype."""
    files = checkpoint.files
    entries = {name: replace(files.entry(name), dtype=dtype) for name, dtype in dtypes.items()}
    return with_files(checkpoint, _Changed(files, {}, {}, entries))


def shortened(checkpoint: Checkpoint, blocks: int, rows: int) -> Checkpoint:
    """The first blocks of a network, and of long tables of words the first rows."""
    heads, files = checkpoint.heads.values(), checkpoint.files
    outside = {*checkpoint.writers, *(name for head in heads for name in (head.weight, head.bias))}
    entries = {
        name: replace(files.entry(name), shape=(rows, *files.entry(name).shape[1:]))
        for name in outside
        if name is not None and files.entry(name).shape[0] > rows
    }
    short = with_files(checkpoint, _Changed(files, {}, {}, entries))
    short.blocks = min(blocks, checkpoint.blocks)
    for cached in ("norm_names", "_block_tensors"):
        short.__dict__.pop(cached, None)  # which go by the number of blocks
    short.__dict__["others"] = checkpoint.others  # and no tensors of blocks that are left out
    return short
