"""Check a zoo: every row's checksum, counts, NaN, duplicates, and whose runs they are."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from transformer_nfn.jobs import DamagedError
from transformer_nfn.stores import UnreachableError
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.schema import (
    COLUMNS,
    MAY_BE_NULL,
    row_digest,
    weight_matrix,
    zoo_schema,
)
from transformer_nfn.zoo.groups import group_of_shard
from transformer_nfn.zoo.tensors import AnyShape


class Checked(NamedTuple):
    """One shard: how many rows it has, and what is wrong with it."""

    name: str
    rows: int
    problems: list[str]


def verify(zoo: Zoo) -> Iterator[Checked]:
    """Check shard by shard; the names that come last, if any, are of temporaries.

    Raises:
        StoreError: If the recipe in zoo.json is none.
    """
    recipe = zoo.recipe
    seen: set[tuple[str, str]] = set()
    for name in zoo.names():
        problems: list[str] = []
        rows = 0
        try:
            table = zoo.shards.read(name)
            rows = len(table)
            problems += _check_table(recipe.shape if recipe is not None else zoo.shape, table)
            keys = list(
                zip(
                    table.column("run_id").to_pylist(),
                    table.column("checkpoint").to_pylist(),
                    strict=True,
                )
            )
            problems += [f"{key} is in the zoo twice" for key in keys if key in seen]
            if len(set(keys)) < len(keys):
                problems.append("a row is in the shard twice")
            seen.update(keys)
            if recipe is not None:
                group = group_of_shard(recipe, name)
                wanted = {(run.id, c) for run in group.runs for c in recipe.checkpoints}
                if set(keys) != wanted:
                    problems.append(
                        f"{len(wanted - set(keys))} rows are missing and "
                        f"{len(set(keys) - wanted)} are not of this shard's runs"
                    )
        except UnreachableError:  # which says nothing of the shard
            raise
        except (StoreError, DamagedError, OSError) as error:
            problems.append(str(error))
        yield Checked(name, rows, problems)
    for leftover in zoo.shards.leftovers():
        yield Checked(leftover, 0, ["a temporary: a build is under way, or was killed"])


def _check_table(shape: AnyShape, table: pa.Table) -> Iterator[str]:
    if not table.schema.equals(zoo_schema(shape), check_metadata=True):
        raise StoreError("its schema is not the zoo's")
    matrix = weight_matrix(table.column("weights"), shape.size)
    null = table.column("weights").is_null().to_pylist()
    finite = np.isfinite(matrix).all(axis=1)
    for number, row in enumerate(table.select(list(COLUMNS)).to_pylist()):
        where = f"row {number} (run {row['run']}, checkpoint {row['checkpoint']})"
        if (row["status"] == "ok") == null[number]:
            yield f"{where}: status {row['status']!r} with{'out' if null[number] else ''} weights"
        if row["status"] == "ok" and not finite[number]:
            yield f"{where}: NaN or infinite weights"
        for name in MAY_BE_NULL:
            if name.endswith("accuracy") and not 0 <= (row[name] or 0.0) <= 1:
                yield f"{where}: {name} is {row[name]}"
        if row_digest(row, None if null[number] else matrix[number]) != row["digest"]:
            yield f"{where}: its checksum is wrong"
