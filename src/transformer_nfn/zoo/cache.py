"""A memory-mapped copy of a zoo's rows on a local disk, for random access during training."""

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import torch
from jaxtyping import Int64
from torch import Tensor

from transformer_nfn.jobs import ShardFolder
from transformer_nfn.space import NetBatch
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.schema import COLUMNS, chosen_rows, weight_matrix
from transformer_nfn.zoo.runs import content_hash
from transformer_nfn.zoo.tensors import AnyShape


@runtime_checkable
class Stored(Protocol):
    """A zoo, as far as a copy needs it."""

    shards: ShardFolder

    @property
    def shape(self) -> AnyShape:
        """The sizes of its nets."""

    def read_shard(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One shard, all columns or some."""


class CachedRows(NamedTuple):
    """The ok rows of a zoo, sorted by run and checkpoint, and their weights on disk."""

    table: pa.Table
    weights: np.ndarray  # "rows weights", memory-mapped, read-only
    shape: AnyShape

    def nets(self, rows: Sequence[int] | Int64[Tensor, " rows"]) -> NetBatch:
        """The networks of some rows, in this order; only these are read."""
        chosen = self.weights[np.asarray(rows)]
        return self.shape.net_batch(torch.from_numpy(chosen))


def cached_rows(zoo: Stored, names: Sequence[str], folder: str | Path | None) -> CachedRows:
    """Open the copy of these shards, made first if need be.

    Shards never change, so the copy is good as long as the zoo has the same ones.
    """
    root = Path(folder) if folder is not None else _default_folder()
    home = root / content_hash([zoo.shards.url, list(names)])[:24]
    if not home.is_dir():
        root.mkdir(parents=True, exist_ok=True)
        # Made under another name: a copy that was interrupted, or two at once, do no harm.
        making = Path(tempfile.mkdtemp(prefix="making-", dir=root))
        try:
            _copy(zoo, names, making)
            os.rename(making, home)
        except OSError:
            if not home.is_dir():
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    try:
        table = pq.read_table(home / "rows.parquet")
        weights = np.load(home / "weights.npy", mmap_mode="r", allow_pickle=False)
        # An archive is no array at all.
        sound = getattr(weights, "shape", None) == (len(table), zoo.shape.size)
    except (OSError, ValueError, pa.ArrowException):
        sound = False
    if not sound:
        raise StoreError(f"the copy in {home} is damaged: delete that folder")
    return CachedRows(table, weights, zoo.shape)


def _copy(zoo: Stored, names: Sequence[str], home: Path) -> None:
    size = zoo.shape.size
    every = pa.concat_tables(zoo.read_shard(name, list(COLUMNS)) for name in names)
    table, places = chosen_rows(every, pc.field("status") == "ok")
    target = np.full(len(every), -1, dtype=np.int64)
    target[places] = np.arange(len(table))
    weights = np.lib.format.open_memmap(
        home / "weights.npy", mode="w+", dtype=np.float32, shape=(len(table), size)
    )
    first = 0
    for name in names:  # one shard in memory at a time
        matrix = weight_matrix(zoo.read_shard(name, ["weights"]).column("weights"), size)
        places = target[first : first + len(matrix)]
        weights[places[places >= 0]] = matrix[places >= 0]
        first += len(matrix)
    weights.flush()
    pq.write_table(table, home / "rows.parquet")


def _default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "transformer-nfn"
