"""A copy of a zoo for the Hugging Face hub: train, validation and test rows in files of their own.

In a built zoo a shard holds what was trained together. Here rows are dealt by their fold, as in the
benchmark's first split, so that whoever loads the data set by its splits has no near-twin of a test
run in training.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn.jobs import ShardFolder
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.finished.card import SIDES, write_card
from transformer_nfn.zoo.format.ownership import NAME, data_url
from transformer_nfn.zoo.format.schema import ROW_GROUP
from transformer_nfn.zoo.runs import content_hash

#: Folds that test and that validate; all others train.
FOLDS = {"test": (0, 1), "validation": (2,)}
_SHARD = re.compile(rf"({'|'.join(SIDES)})-\d{{5}}-[0-9a-f]{{12}}\.parquet")
#: Rows of a file: some 150 MB of the paper's nets.
ROWS = 2000


def publish(zoo: Zoo, url: str | Path) -> list[str]:
    """Write the copy with its card; the names of its files. What is there already is kept.

    Args:
        zoo: What to copy.
        url: An empty folder or fsspec URL, or one that an interrupted copy of it went to.

    Raises:
        StoreError: If the folder is the zoo's own, or holds something else.
    """
    root, shards = ShardFolder(url), ShardFolder(data_url(url))
    if root.url == zoo.root.url:
        raise StoreError(f"{url} is the zoo itself: choose another folder")
    described = zoo.root.read_bytes(NAME)
    ours = root.write_once(NAME, described) or root.read_bytes(NAME) == described
    if not ours or not all(_SHARD.fullmatch(name) for name in shards.names()):
        raise StoreError(f"{url} holds something else: choose another folder")
    names = [name for side in SIDES for name in _write(zoo, side, shards)]
    if shards.names() != set(names):
        raise StoreError(f"{url} holds a copy of when the zoo had other rows: choose a new folder")
    return [*(f"data/{name}" for name in names), NAME, *write_card(Zoo(url))]


def _write(zoo: Zoo, side: str, shards: ShardFolder) -> Iterator[str]:
    waiting: list[pa.Table] = []
    number = 0
    for shard in [*zoo.names(), None]:
        if shard is not None:
            waiting.append(zoo.read_shard(shard).filter(_of(side)))
        rows = pa.concat_tables(waiting)
        while len(rows) >= ROWS or (shard is None and len(rows)):
            some = rows.slice(0, ROWS)
            digest = content_hash(some.column("digest").to_pylist())[:12]
            name = f"{side}-{number:05d}-{digest}.parquet"
            shards.commit(name, some, row_group_size=ROW_GROUP)
            yield name
            rows, number = rows.slice(ROWS), number + 1
        waiting = [rows]


def _of(side: str) -> pc.Expression:
    fold = pc.field("fold")
    if side in FOLDS:
        return fold.isin(FOLDS[side])
    return ~fold.isin([number for folds in FOLDS.values() for number in folds])
