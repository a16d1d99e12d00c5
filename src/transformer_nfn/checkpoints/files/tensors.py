"""Tensors by name from one safetensors file, or from shards with an index.

Tensors are read one by one into memory of their own: nothing is mapped, so memory is what was
asked for, and a file that shrinks meanwhile is an error and not a crash.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError
from transformer_nfn.checkpoints.files.closing import Closing
from transformer_nfn.checkpoints.files.header import MAX_HEADER, Entry, Header, read_header
from transformer_nfn.checkpoints.files.places import (
    File,
    Place,
    find_files,
    open_regular,
    place_of,
    weight_map,
)
from transformer_nfn.stores import RangeFile

#: Names that `transformers` reads as others, of files that TensorFlow's were made into.
_OLD = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}


def _current_name(name: str) -> str:
    stem, dot, last = name.rpartition("LayerNorm.")
    current = _OLD.get(dot + last)
    return stem + current if current and (not stem or stem.endswith(".")) else name


class TensorFiles(Closing):
    """The tensors of one checkpoint. A context manager, since it holds files open.

    Attributes:
        path: What was opened: a file, or the folder of shards.
        folder: Where its config.json would be.
        shards: For each file its path and header.
        largest_read: Most bytes that may be read at once, None for any number: what bulk work
            allows to files that it knows nothing of.
        deadline: When to read no more, by `time.monotonic`; None for never.
        values: Whether its numbers are weights, not how far these may be off.
        config: What its config.json would say, where the file says so itself.
        whole: Whether these are all tensors of its files.
    """

    config: dict[str, Any] | None = None
    whole: bool = True
    values: bool = True
    largest_read: int | None = None
    deadline: float | None = None

    def __init__(self, path: str | Path) -> None:
        """Open a `.safetensors` file, an index, or a folder with either; read headers only.

        Args:
            path: On a disk, or a URL that fsspec knows.

        Raises:
            CheckpointError: If there is none, or it is not sound.
        """
        self.path = place_of(path)
        self._open: list[File] = []
        self._asked = 0
        self.shards: list[tuple[Place, Header]] = []
        self._where: dict[str, tuple[int, Entry]] = {}
        self._stored: dict[str, str] = {}
        try:
            self._open_all()
        except OSError as error:
            self.close()
            raise UnreadableError(f"{self.path}: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise

    def _open_all(self) -> None:
        files, index = find_files(self.path)
        self.folder = files[0].parent
        self.index = index
        limit = MAX_HEADER
        for number, file in enumerate(files):
            handle, size = open_regular(file)
            self._open.append(handle)
            header = self._read_header(handle, size, file, limit)
            limit = max(limit - header.start, 0)  # one limit for all, or many shards have none
            self._asked += header.start
            self.shards.append((file, header))
            for stored, entry in header.entries.items():
                name = _current_name(stored)
                if name in self._where:
                    raise CheckpointError(
                        f"{file}: tensor {name[:80]!r} is in two shards, or under its old name too"
                    )
                self._where[name] = (number, entry)
                self._stored.setdefault(name, stored)
        if index:
            stated = weight_map(index)
            actual = {
                self._stored[name]: files[number].name for name, (number, _) in self._where.items()
            }
            if stated != actual:
                wrong = sorted(n for n in stated | actual if stated.get(n) != actual.get(n))
                raise CheckpointError(
                    f"{index} and its shards disagree on {len(wrong)} tensors, "
                    f"{wrong[0][:80]!r} first"
                )

    def _read_header(self, handle: File, size: int, file: Place, limit: int) -> Header:
        return read_header(handle, size, str(file), limit)

    def close(self) -> None:
        """Close all files."""
        for handle in self._open:
            handle.close()
        self._open = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def stored_name(self, name: str) -> str:
        """What the file calls a tensor: the first BERTs have old names for scale and shift."""
        return self._stored.get(name, name)

    def entry(self, name: str) -> Entry:
        """Dtype and shape of a tensor."""
        return self._where[name][1]

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All of them."""
        return {name: entry for name, (_, entry) in self._where.items()}

    @property
    def shard_of(self) -> Mapping[str, int]:
        """The number of the file that each tensor is in."""
        return {name: number for name, (number, _) in self._where.items()}

    def float_dtypes(self, *, first_shard: bool = False) -> set[torch.dtype]:
        """How numbers with a fraction are stored, in all files or in the first of them."""
        return {
            entry.dtype
            for number, entry in self._where.values()
            if entry.dtype.is_floating_point and not (first_shard and number)
        }

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.end - entry.begin for _, entry in self._where.values())

    @property
    def bytes_read(self) -> int:
        """Bytes read so far: from a disk what was asked for, from elsewhere what came."""
        remote = [handle.fetched for handle in self._open if isinstance(handle, RangeFile)]
        return sum(remote) if remote else self._asked

    def read(self, name: str) -> Tensor:
        """A tensor as it is stored."""
        number, entry = self._where[name]
        start = self.shards[number][1].start + entry.begin
        return (
            self._bytes(number, start, entry.end - entry.begin).view(entry.dtype).view(entry.shape)
        )

    def rows(self, name: str, rows: Sequence[int]) -> Tensor:
        """Some rows of a tensor, without reading the others."""
        # The first, which is empty, gives the shape where no rows are asked for.
        return torch.cat([self.slice(name, 0, 0), *(self.slice(name, r, r + 1) for r in rows)])

    def chunks(self, name: str, rows: int) -> Iterator[Tensor]:
        """A tensor in slices of some rows, in order."""
        for first in range(0, self.entry(name).shape[0], rows):
            yield self.slice(name, first, min(first + rows, self.entry(name).shape[0]))

    def slice(self, name: str, first: int, last: int) -> Tensor:
        """The rows from `first` to before `last`."""
        entry = self.entry(name)
        flat = self._rows(name, first, last)
        return flat.view(entry.dtype).view(last - first, *entry.shape[1:])

    def _rows(self, name: str, first: int, last: int) -> Tensor:
        """The bytes of some rows."""
        number, entry = self._where[name]
        if not 0 <= first <= last <= entry.shape[0]:  # beyond are the bytes of other tensors
            raise IndexError(f"{name} has {entry.shape[0]} rows, asked for {first} to {last}")
        width = (entry.end - entry.begin) // max(entry.shape[0], 1)
        start = self.shards[number][1].start + entry.begin + first * width
        return self._bytes(number, start, (last - first) * width)

    def pieces(self, name: str, most: int) -> Iterator[Tensor]:
        """The bytes of a tensor as they are stored, at most so many at a time."""
        number, entry = self._where[name]
        start = self.shards[number][1].start
        return self._pieces(number, start + entry.begin, start + entry.end, most)

    def header_bytes(self, number: int) -> Tensor:
        """The bytes of a shard before its tensors: the header's length and its text."""
        return self._bytes(number, 0, self.shards[number][1].start)

    def data_pieces(self, number: int, most: int) -> Iterator[Tensor]:
        """The bytes of all tensors of a shard as they are stored, at most so many at a time."""
        header = self.shards[number][1]
        size = max((entry.end for entry in header.entries.values()), default=0)
        return self._pieces(number, header.start, header.start + size, most)

    def _pieces(self, number: int, first: int, last: int, most: int) -> Iterator[Tensor]:
        for start in range(first, last, most):
            yield self._bytes(number, start, min(most, last - start))

    def _bytes(self, number: int, start: int, count: int) -> Tensor:
        if self.largest_read is not None and count > self.largest_read:
            raise CheckpointError(
                f"{self.shards[number][0]} asks for {count} bytes at once; at most "
                f"{self.largest_read} are read"
            )
        if self.deadline is not None and time.monotonic() > self.deadline:
            raise UnreadableError(f"{self.path} takes too long; {self.bytes_read} bytes were read")
        self._asked += count
        try:
            buffer = torch.empty(count, dtype=torch.uint8)
        except (RuntimeError, MemoryError):  # a sparse file may say terabytes and take none
            raise CheckpointError(
                f"{self.shards[number][0]}: no memory for a tensor of {count} bytes"
            ) from None
        view = memoryview(buffer.numpy())  # type: ignore[arg-type]
        handle = self._open[number]
        handle.seek(start)
        at = 0
        while at < count:
            try:
                got = handle.readinto(view[at:])  # type: ignore[union-attr]
            except OSError as error:  # a disk, or a store that was asked for too long
                place = self.shards[number][0]
                raise UnreadableError(f"{place}: {error.strerror or error}") from None
            if not got:
                raise CheckpointError(f"{self.shards[number][0]} became shorter while it was read")
            at += got
        return buffer


class OtherNumbers(TensorFiles):
    """The same open files with other numbers in them; what these are, those say that inherit.

    Args:
        files: As they are stored.
        entries: Tensors that have another dtype, or fewer rows.
    """

    def __init__(self, files: TensorFiles, entries: Mapping[str, Entry] | None = None) -> None:
        self.__dict__.update(files.__dict__)
        self.as_stored = files
        if entries:
            self._where = {n: (i, entries.get(n, entry)) for n, (i, entry) in self._where.items()}

    def read(self, name: str) -> Tensor:
        """A tensor."""
        return self.as_stored.read(name)

    def slice(self, name: str, first: int, last: int) -> Tensor:  # and rows and chunks by it
        """The rows from `first` to before `last`."""
        return self.as_stored.slice(name, first, last)


class SomeTensors(OtherNumbers):
    """Some tensors of open files.

    Args:
        files: As they are stored.
        names: Which of them.
    """

    whole = False

    def __init__(self, files: TensorFiles, names: Collection[str]) -> None:
        super().__init__(files)
        self._where = {name: where for name, where in self._where.items() if name in names}
