"""Read a zoo: its rows, its networks, and a memory-mapped copy to train from.

This is the zoo's second door: reading needs no trainer and no Ray.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch

from transformer_nfn.jobs import ShardFolder
from transformer_nfn.space import NetBatch
from transformer_nfn.zoo.cache import CachedRows, cached_rows
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.schema import COLUMNS, FORMAT, read_shape, weight_matrix

__all__ = ["Rows", "Zoo", "ok"]

#: The filter that everything but a look at failures wants.
ok = pc.field("status") == "ok"


class Rows(NamedTuple):
    """Rows of a zoo and the networks they hold, in the same order."""

    table: pa.Table
    nets: NetBatch


class Zoo:
    """A built zoo on a local disk or any fsspec URL.

    Args:
        url: Its folder, the one with zoo.json.

    Raises:
        StoreError: If there is no zoo, or one of another format.
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url).rstrip("/")
        self.root, self.shards = ShardFolder(url), ShardFolder(f"{self.url}/data")
        try:
            self.description: dict[str, Any] = json.loads(self.root.read_bytes("zoo.json"))
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.url} is no zoo: it has no zoo.json. `tnfn zoo build RECIPE --out FOLDER` "
                "makes one"
            ) from error
        except (ValueError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.url}/zoo.json is not JSON: {error}") from error
        if self.description.get("format") != FORMAT:
            raise StoreError(
                f"{self.url} has format {self.description.get('format')}, this version reads "
                f"{FORMAT}"
            )

    def names(self) -> list[str]:
        """The committed shards, sorted.

        Raises:
            StoreError: If there are none yet.
        """
        names = sorted(self.shards.names())
        if not names:
            raise StoreError(f"{self.url} has no shards yet: run `tnfn zoo build` again")
        return names

    @cached_property
    def shape(self) -> NetShape:
        """The sizes of its nets."""
        return read_shape(self.shards.metadata(self.names()[0]).schema.to_arrow_schema())

    def table(
        self, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows without their weights, sorted by run and checkpoint.

        Args:
            where: Which rows, such as ``ok & (pc.field("optimizer") == "adam")``.
            columns: Which columns; all but the weights if None.
        """
        table = pa.concat_tables(
            self.shards.read(name, columns=list(COLUMNS)) for name in self.names()
        )
        return _chosen(table, where).select(list(columns or COLUMNS))

    def batches(self, where: pc.Expression | None = ok) -> Iterator[Rows]:
        """Shard by shard, the rows with their networks; memory is bounded by one shard."""
        for name in self.names():
            table = _chosen(self.shards.read(name), where)
            if len(table):
                weights = weight_matrix(table.column("weights"), self.shape.size)
                yield Rows(
                    table.drop_columns(["weights"]), self.shape.net_batch(torch.from_numpy(weights))
                )

    def rows(self, where: pc.Expression | None = ok) -> Rows:
        """All chosen rows at once, sorted by run and checkpoint; `cached` is for larger zoos."""
        tables = [_chosen(self.shards.read(name), where) for name in self.names()]
        table = _chosen(pa.concat_tables(tables), None)
        weights = weight_matrix(table.column("weights"), self.shape.size)
        return Rows(
            table.drop_columns(["weights"]), self.shape.net_batch(torch.from_numpy(weights))
        )

    def cached(self, folder: str | Path | None = None) -> CachedRows:
        """All rows with weights, memory-mapped: for random access during training.

        The copy is made on first use and again when shards were added.

        Args:
            folder: Where copies are kept; ``~/.cache/transformer-nfn`` if None.
        """
        return cached_rows(self.shards, self.names(), self.shape, folder)


def _chosen(table: pa.Table, where: pc.Expression | None) -> pa.Table:
    if where is not None:
        table = table.filter(where)
    return table.sort_by(
        [("run", "ascending"), ("epoch", "ascending"), ("checkpoint", "ascending")]
    )
