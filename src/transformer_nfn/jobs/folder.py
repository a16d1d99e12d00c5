"""A folder of immutable Parquet shards, on a local disk or any fsspec URL."""

import io
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from transformer_nfn.jobs.errors import DamagedError, JobError
from transformer_nfn.jobs.localfiles import TEMPORARIES, create_file, replace_file
from transformer_nfn.jobs.tables import read_table, sound
from transformer_nfn.stores import CREATE_ONLY, RangeFile, Store

_SUFFIX = ".parquet"
_NAME = re.compile(r"[A-Za-z0-9-][A-Za-z0-9._-]*")
#: Longest JSON file beside the shards that is read; ours have a few kB.
_MAX_JSON = 2**22

#: Least bytes of a request for a remote shard: of a small one, footer and columns come at once.
_AHEAD = 2**20


class ShardFolder:
    """Shards that are committed once, appear whole, and never change.

    Several builders may write into one folder at the same time, each in its own time: what is
    committed is what `names` lists, and nothing else has to be kept. On a local disk a shard gets
    its name by a hard link, remotely by a conditional write. Remote folders: ``s3://`` (the store
    must honour If-None-Match, as AWS, R2 and MinIO do), ``gs://``, ``az://``, and ``memory://`` for
    tests in one thread; other fsspec URLs can be read but not written. A folder can be pickled.

    Args:
        url: A path, or a URL that fsspec knows; need not exist yet.

    Example:
        >>> folder = ShardFolder("memory://doctest-shards")
        >>> table = pa.table({"seed": [1, 2, 3]})
        >>> folder.commit("0.parquet", table, row_group_size=2)
        True
        >>> folder.commit("0.parquet", table, row_group_size=2)
        False
        >>> folder.names(), folder.metadata("0.parquet").num_row_groups
        ({'0.parquet'}, 2)
    """

    def __init__(self, url: str | Path) -> None:
        self._local: Path | None = None
        if isinstance(url, Path) or "://" not in url:
            # Absolute, since the workers of a cluster have another working folder.
            self._local = Path(os.path.abspath(os.path.expanduser(url)))
        else:
            self._store, self._path = Store.at(url)
            if self._store.is_local:
                self._local = Path(self._path)
        self.url = str(url) if self._local is None else str(self._local)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def names(self) -> set[str]:
        """Names of all committed shards, by one listing; none if there is no such folder yet."""
        return {name for name in self._list() if name.endswith(_SUFFIX)}

    def sidecars(self) -> set[str]:
        """Names of the small files beside the shards."""
        return {name for name in self._list() if not name.endswith(_SUFFIX)}

    def _list(self) -> set[str]:
        try:
            if self._local is not None:
                with os.scandir(self._local) as entries:
                    found = [entry.name for entry in entries if entry.is_file()]
            else:
                self._store.forget(self._path)  # others commit too
                there = self._store.entries(self._path)
                found = [one["name"].rsplit("/", 1)[-1] for one in there if one["type"] == "file"]
        except FileNotFoundError:
            return set()
        return {name for name in found if _NAME.fullmatch(name)}

    def commit(self, name: str, table: pa.Table, *, row_group_size: int) -> bool:
        """Write a shard, unless it is there: True if this call committed it.

        The bytes depend on the table's schema and values alone (for one version of pyarrow), not on
        how it is cut into chunks, so two builders of a shard write the same file. Uncompressed and
        without dictionaries: weights look like noise to both.

        Args:
            name: File name of the shard, ending in ``.parquet``.
            table: Its rows.
            row_group_size: Rows that can be read on their own; the last group may have fewer.
        """
        if not name.endswith(_SUFFIX):
            raise JobError(f"the name of a shard ends in {_SUFFIX}, got {name!r}")
        whole = table.combine_chunks()

        def write(file: io.BufferedIOBase) -> None:
            pq.write_table(
                whole,
                file,
                row_group_size=row_group_size,
                use_dictionary=False,
                compression="none",
                store_schema=True,
            )

        return self._create(name, write)

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows of a shard, or only some of its columns.

        Raises:
            DamagedError: If it is no sound Parquet file, or asks for far more memory than it has.
        """
        with self._parquet(name) as (parquet, size):
            return read_table(parquet, size, columns)

    def metadata(self, name: str) -> pq.FileMetaData:
        """Footer of a shard: schema, row groups, statistics. Reads no rows.

        Raises:
            DamagedError: If it is no sound Parquet file.
        """
        with self._parquet(name) as (parquet, _):
            return parquet.metadata

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO | RangeFile]:
        """A file of the folder, open for reading bytes."""
        _check(name)
        if self._local is not None:
            with open(self._local / name, "rb") as file:
                yield file
        else:
            with self._store.open(f"{self._path}/{name}", _AHEAD) as file:
                yield file

    def read_bytes(self, name: str) -> bytes:
        """Content of a file of the folder."""
        with self.open(name) as file:
            return file.read()

    def read_json(self, name: str) -> dict[str, Any]:
        """A JSON object of the folder.

        Raises:
            DamagedError: If it is none, or far too long.
        """
        with self.open(name) as file:
            text = file.read(_MAX_JSON + 1)
        where = f"{self.url}/{name}"
        if len(text) > _MAX_JSON:
            raise DamagedError(f"{where} has more than {_MAX_JSON} bytes")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:  # not JSON, no text at all, too deep
            raise DamagedError(f"{where} is not JSON: {str(error)[:200]}") from None
        if not isinstance(value, dict):
            raise DamagedError(f"{where} holds no JSON object but a {type(value).__name__}")
        return value

    def write_once(self, name: str, data: bytes) -> bool:
        """Create a small file beside the shards, unless it is there: True if this call created it.

        For what must be the same for all builders, such as the description of what is built.
        """
        _check_sidecar(name)
        return self._create(name, lambda file: file.write(data))

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file beside the shards, in place of what may be there.

        Only for what can be derived from the shards again.
        """
        _check_sidecar(name)
        if self._local is not None:
            replace_file(self._local / name, lambda file: file.write(data))
        else:
            self._refuse_unsafe()
            self._store.replace(f"{self._path}/{name}", data)

    def leftovers(self) -> list[str]:
        """Temporaries of commits that are under way or were killed; remotely there are none.

        A killed upload to an object store leaves no object, at most parts that a rule of the
        bucket can expire.
        """
        if self._local is None:
            return []
        try:
            return sorted(f"{TEMPORARIES}/{name}" for name in os.listdir(self._local / TEMPORARIES))
        except FileNotFoundError:
            return []

    def sweep(self, older_than_seconds: float | int) -> int:
        """Remove temporaries last written to longer ago than this, and say how many.

        Choose far more than writing a shard takes: a commit whose temporary is gone fails.
        """
        removed = 0
        for name in self.leftovers():
            assert self._local is not None
            temporary = self._local / name
            try:
                if time.time() - temporary.stat().st_mtime > older_than_seconds:
                    temporary.unlink()
                    removed += 1
            except FileNotFoundError:  # its commit has just ended
                continue
        return removed

    def _create(self, name: str, write: Callable[[io.BufferedIOBase], object]) -> bool:
        _check(name)
        if self._local is not None:
            return create_file(self._local / name, write)
        self._refuse_unsafe()
        buffer = io.BytesIO()
        write(buffer)
        return self._store.create(f"{self._path}/{name}", buffer.getvalue())

    def _refuse_unsafe(self) -> None:
        if not self._store.creates:
            raise JobError(
                f"{self.url} can be read but not written: {type(self._store.fs).__name__} is not "
                "known to create a file whole and only if there is none. Write to a local or "
                f"mounted folder, or to one of {sorted(CREATE_ONLY)}, with a current fsspec package"
            )

    @contextmanager
    def _parquet(self, name: str) -> Iterator[tuple[Any, int]]:
        """A shard, open, and its size."""
        _check(name)
        with sound(f"shard {name} of {self.url}"):
            if self._local is not None:  # by its path: faster than through a Python file
                path = str(self._local / name)
                with pq.ParquetFile(path) as parquet:
                    yield parquet, os.stat(path).st_size
            else:
                with self.open(name) as file, pq.ParquetFile(file) as parquet:
                    yield parquet, file.seek(0, os.SEEK_END)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise JobError(
            f"a file name has only letters, digits, '.', '_' and '-', and does not begin with '.' "
            f"or '_'; got {name!r}"
        )


def _check_sidecar(name: str) -> None:
    _check(name)
    if name.endswith(_SUFFIX):
        raise JobError(f"{name!r} is the name of a shard: shards are written by commit alone")
