"""Read a zoo: its rows, its networks, and a memory-mapped copy to train from.

This is the zoo's second door: reading needs no trainer and no Ray.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch
from pydantic import ValidationError

from transformer_nfn.jobs import DamagedError, ShardFolder
from transformer_nfn.space import NetBatch
from transformer_nfn.stores import UnreachableError
from transformer_nfn.zoo.cache import CachedRows, cached_rows
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.ownership import data_url, read_description
from transformer_nfn.zoo.format.schema import (
    COLUMNS,
    check_columns,
    chosen_rows,
    read_shape,
    weight_matrix,
)
from transformer_nfn.zoo.gathered.files import check_header, read_row
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.recipe import RECIPES, Recipe
from transformer_nfn.zoo.tensors import AnyShape, TensorShape

__all__ = [
    "RECIPES",
    "AnyShape",
    "CachedRows",
    "NetShape",
    "Recipe",
    "Rows",
    "StoreError",
    "TensorShape",
    "Zoo",
    "check_header",
    "ok",
    "read_row",
]

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
        self.root, self.shards = ShardFolder(url), ShardFolder(data_url(url))
        described = read_description(self.root)
        if described is None:
            raise StoreError(
                f"{self.url} is no zoo: it has no zoo.json. `tnfn zoo build RECIPE --out FOLDER` "
                "makes one"
            )
        self.description = described

    @property
    def name(self) -> str | None:
        """The name of the recipe or source that it was made from, if it has one."""
        made_from = self.description.get("recipe", self.description.get("source", {}))
        name = made_from.get("name")
        return name if isinstance(name, str) else None

    @cached_property
    def recipe(self) -> Recipe | None:
        """What it is built from; None for an imported zoo.

        Raises:
            StoreError: If zoo.json holds no valid recipe.
        """
        if "recipe" not in self.description:
            return None
        try:  # how many runs were asked for is not kept
            return Recipe.model_validate({**self.description["recipe"], "runs": 1})
        except ValidationError as error:
            raise StoreError(f"{self.url}: zoo.json holds no valid recipe: {error}") from None

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
    def shape(self) -> AnyShape:
        """The sizes of its nets, from the first shard that can be read.

        Raises:
            StoreError: If none can.
        """
        reason: Exception | None = None
        for name in self.names():
            try:
                return read_shape(self.shards.metadata(name).schema.to_arrow_schema())
            except UnreachableError:
                raise
            except (StoreError, DamagedError, OSError, pa.ArrowException) as error:
                reason = reason or error
        raise StoreError(f"no shard of {self.url} can be read: {reason}")

    def table(
        self, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """The rows without their weights, sorted by run and checkpoint.

        Args:
            where: Which rows, such as ``ok & (pc.field("optimizer") == "adam")``.
            columns: Which columns; all but the weights if None.
        """
        table = pa.concat_tables(self.read_shard(name, list(COLUMNS)) for name in self.names())
        return chosen_rows(table, where)[0].select(list(columns or COLUMNS))

    def batches(self, where: pc.Expression | None = ok) -> Iterator[Rows]:
        """Shard by shard, the rows with their networks; memory is bounded by one shard."""
        for name in self.names():
            table, weights = self._read(name, where)
            if len(table):
                yield Rows(table, self.shape.net_batch(torch.from_numpy(weights)))

    def rows(self, where: pc.Expression | None = ok) -> Rows:
        """All chosen rows at once, sorted by run and checkpoint; `cached` is for larger zoos."""
        parts = [self._read(name, where) for name in self.names()]
        table, places = chosen_rows(pa.concat_tables(part[0] for part in parts), None)
        weights = np.concatenate([part[1] for part in parts])[places]
        return Rows(table, self.shape.net_batch(torch.from_numpy(weights)))

    def _read(self, name: str, where: pc.Expression | None) -> tuple[pa.Table, np.ndarray]:
        shard = self.read_shard(name)
        table, places = chosen_rows(shard.drop_columns(["weights"]), where)
        return table, weight_matrix(shard.column("weights"), self.shape.size)[places]

    def read_shard(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """One shard as it is, with its weights.

        Raises:
            StoreError: If it is damaged, or its columns are not a zoo's.
        """
        try:
            table = self.shards.read(name, columns)
            check_columns(table, self.shape, columns)
            return table
        except UnreachableError:  # the store is down, and no shard is damaged
            raise
        except (OSError, DamagedError, StoreError) as error:
            raise StoreError(
                f"shard {name} of {self.url} cannot be read ({error}): `tnfn zoo verify` finds "
                "damaged shards; delete them and build again"
            ) from error

    def cached(self, folder: str | Path | None = None) -> CachedRows:
        """All rows with weights, memory-mapped: for random access during training.

        The copy is made on first use and again when shards were added.

        Args:
            folder: Where copies are kept; ``~/.cache/transformer-nfn`` if None.
        """
        return cached_rows(self, self.names(), folder)
