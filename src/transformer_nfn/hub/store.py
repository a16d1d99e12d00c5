"""The results of bulk work: a folder of Parquet shards, and hub.json, which says what they hold.

Shards are committed once and never change. Their names begin with the number of the run that wrote
them, and of several rows of one path the newest counts. docs/reference/formats.md specifies the
columns.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from transformer_nfn.hub.errors import HubError
from transformer_nfn.jobs import DamagedError, ShardFolder
from transformer_nfn.stores import UnreachableError

FORMAT = 1
NAME = "hub.json"
#: Seconds; temporaries older than that belong to nobody.
_SWEEP_AGE = 3600.0
#: Rows that can be read on their own.
_ROW_GROUP = 1024
#: Shards that are read at a time: their footers are small, and far ones take a while to come.
_THREADS = 16

#: What every row has. Status is "ok"; "broken": the file is at fault; "unsupported": no family
#: reads it, and it is tried again by a reader that knows others; "failed": it could not be read, or
#: a worker died; "changed": while it was read. The last two are tried again in any case.
COLUMNS = pa.schema(
    {
        "path": pa.string(),
        "version": pa.string(),
        "size": pa.int64(),
        "status": pa.string(),
        "reason": pa.string(),
        "bytes_read": pa.int64(),
        "seconds": pa.float64(),
        "reader": pa.string(),
    }
)
_NEVER_NULL = ("path", "version", "status")
FINAL = ("ok", "broken")


class Results:
    """A folder of results, there or not yet.

    Args:
        url: A path or an fsspec URL.
        task: What was computed with which settings; any that is there if None.

    Raises:
        HubError: If the folder holds something else.
    """

    def __init__(self, url: str, task: Mapping[str, Any] | None = None) -> None:
        self._root = ShardFolder(url)
        self.url = self._root.url
        self._shards = ShardFolder(f"{self.url.rstrip('/')}/data")
        self.task = self._described(task)

    @staticmethod
    def there(url: str) -> bool:
        """Whether a folder holds results."""
        try:
            return bool(ShardFolder(url).read_bytes(NAME))
        except UnreachableError:
            raise
        except OSError:
            return False

    def _described(self, task: Mapping[str, Any] | None) -> dict[str, Any]:
        try:
            there = self._root.read_json(NAME)
            if there["format"] != FORMAT:
                raise HubError(
                    f"{self.url} has format {there['format']!r:.60}, this reads {FORMAT}"
                )
            found = dict(there["task"])
        except FileNotFoundError:
            if task is None:
                raise HubError(f"{self.url} holds no results: it has no {NAME}") from None
            return dict(task)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, HubError):
                raise
            raise HubError(f"{self.url}/{NAME} is not what was written there") from None
        except OSError as error:
            raise HubError(f"{self.url} cannot be read: {error.strerror or error}") from None
        if task is not None and found != task:
            raise HubError(
                f"{self.url} holds results of {json.dumps(found)}, not of {json.dumps(task)}: "
                "choose another folder"
            )
        return found

    def claim(self) -> None:
        """Write hub.json, or check that it is ours; sweep up after runs that were killed.

        Raises:
            HubError: If it cannot be written, or is not ours.
        """
        versions = {"transformer-nfn": version("transformer-nfn")}
        described = {"format": FORMAT, "task": self.task, "versions": versions}
        with self._writing():
            for folder in (self._root, self._shards):
                folder.sweep(_SWEEP_AGE)
            created = self._root.write_once(NAME, json.dumps(described, indent=1).encode())
        if not created:
            self._described(self.task)

    @property
    def next_run(self) -> int:
        """A number above those of all runs that have committed anything."""
        return 1 + max((int(name.partition("-")[0]) for name in self._names()), default=0)

    def commit(self, name: str, table: pa.Table) -> bool:
        """Write a shard, unless it is there.

        Raises:
            HubError: If it cannot be written: a full disk, permissions.
        """
        with self._writing():
            return self._shards.commit(name, table, row_group_size=_ROW_GROUP)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HubError(
                f"{self.url} cannot be written: {error.strerror or error}. What is there stays: "
                "make room or give leave to write, and the same command continues"
            ) from None

    def read(self, name: str) -> bytes:
        """A small file beside the shards.

        Raises:
            FileNotFoundError: If it is not there.
        """
        return self._root.read_bytes(name)

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file that can be derived from the rows again."""
        self._root.replace(name, data)

    def rows(
        self, columns: Sequence[str] | None = None, of_task: pa.Schema | None = None
    ) -> pa.Table:
        """The newest row of each path, all columns or `path` and some.

        Args:
            columns: Which of `COLUMNS` and of the task's.
            of_task: The columns that the task adds; needed to choose some of them.

        Raises:
            HubError: If a shard is damaged, or has other columns.
        """
        known = pa.schema([*COLUMNS, *(of_task or ())])
        names = known.names if columns is None else list(dict.fromkeys(["path", *columns]))
        wanted = pa.schema([known.field(name) for name in names])
        chosen = None if columns is None else names
        with ThreadPoolExecutor(_THREADS) as threads:
            tables = list(threads.map(lambda name: self._read(name, wanted, chosen), self._names()))
        try:
            return newest(pa.concat_tables(tables or [wanted.empty_table()]))
        except pa.ArrowException:
            raise HubError(f"{self.url} has shards of different columns") from None

    def _read(self, name: str, wanted: pa.Schema, columns: list[str] | None) -> pa.Table:
        """A shard, which may have been written by anyone, with at least some columns."""
        try:
            table = self._shards.read(name, columns)
        except DamagedError as error:
            raise HubError(
                f"{error}: remove it, and the same command does its files again"
            ) from None
        for field in wanted:
            there = table[field.name] if field.name in table.column_names else None
            if there is None or there.type != field.type:
                raise HubError(f"shard {name} of {self.url} has no column {field}")
            if field.name in _NEVER_NULL and there.null_count:
                raise HubError(f"shard {name} of {self.url} has nulls in column {field.name}")
        return table if columns is None else table.select(columns)

    def _names(self) -> list[str]:
        return sorted(name for name in self._shards.names() if name[:6].isdecimal())


def newest(table: pa.Table) -> pa.Table:
    """Of several rows of a path the last.

    Example:
        >>> newest(pa.table({"path": ["a", "b", "a"], "n": [1, 2, 3]})).to_pydict()
        {'path': ['b', 'a'], 'n': [2, 3]}
    """
    codes = table["path"].combine_chunks().dictionary_encode().indices.to_numpy()
    _, from_the_end = np.unique(codes[::-1], return_index=True)
    if len(from_the_end) == len(table):
        return table
    return table.take(np.sort(len(codes) - 1 - from_the_end))
