"""What is to be done: items that are new or changed, dealt into batches."""

import hashlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn import __version__
from transformer_nfn.checkpoints import FAMILIES, installed
from transformer_nfn.hub.items import Item
from transformer_nfn.hub.store import FINAL

#: Fewest and most files of a batch, and about its bytes: minutes of work, of which nothing is kept
#: if a worker dies. 2 PB are some 30,000 batches.
FILES = 8, 512
BYTES = 2**30, 2**36
#: Batches that a smaller run is cut into all the same, for many workers and steady progress.
_BATCHES = 64


class Batch(NamedTuple):
    """Items that are one job and one shard."""

    name: str
    items: list[Item]


@cache
def reader() -> str:
    """What reads: this version, and the families it knows."""
    names = sorted([*FAMILIES, *(family.name for family in installed())])
    digest = hashlib.sha256(" ".join([__version__, *names]).encode())
    return digest.hexdigest()[:16]


def open_items(listing: pa.Table, known: pa.Table) -> pa.Table:
    """What has no row yet, or one of another version, or one that is to be tried again.

    Args:
        listing: See `list_items`.
        known: `path`, `version`, `status` and `reader`, each path once.
    """
    final = known.filter(
        pc.or_(
            pc.is_in(known["status"], pa.array(FINAL)),
            pc.and_(
                pc.equal(known["status"], "unsupported"),
                pc.fill_null(pc.equal(known["reader"], reader()), False),
            ),
        )
    )
    keys = ["path", "version"]
    return listing.join(final.select(keys), keys, join_type="left anti").sort_by("path")


def deal(
    items: pa.Table,
    run: int,
    files: tuple[int, int] = FILES,
    many_bytes: tuple[int, int] = BYTES,
) -> Iterator[Batch]:
    """Cut sorted items into batches, which are made one by one as they are drawn.

    The name of a batch says which run it is of and what it holds, so two workers or two equal runs
    that do the same batch commit one shard.

    Args:
        items: A listing.
        run: See `Results.next_run`.
        files: Bounds of the largest number of items of a batch.
        many_bytes: Bounds of its largest number of bytes, but for its last item.
    """
    sizes = items["size"].to_numpy()
    by_count = np.arange(len(items)) // np.clip(len(items) // _BATCHES, *files)
    by_size = (np.cumsum(sizes) - sizes) // np.clip(sizes.sum() // _BATCHES, *many_bytes)
    new = (np.diff(by_count, prepend=-1) != 0) | (np.diff(by_size, prepend=-1) != 0)
    starts = np.flatnonzero(new)
    for start, end in pairwise([*starts, len(items)]):
        rows = items.slice(start, end - start).to_pydict()
        yield name_batch([Item(*row) for row in zip(*rows.values(), strict=True)], run)


def name_batch(items: list[Item], run: int) -> Batch:
    """A batch with the name that its items give it."""
    digest = hashlib.sha256("\n".join(f"{one.path}\0{one.version}" for one in items).encode())
    return Batch(f"{run:06d}-{digest.hexdigest()[:16]}.parquet", items)


def one_by_one(batch: Batch) -> list[Batch]:
    """The same items, each a batch of its own."""
    run = int(batch.name.partition("-")[0])
    return [name_batch([item], run) for item in batch.items]
