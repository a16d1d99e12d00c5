"""Tensors by name from one safetensors file, or from shards with an index.

Tensors are read one by one into memory of their own: nothing is mapped, so memory is what was
asked for, and a file that shrinks meanwhile is an error and not a crash.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from torch import Tensor

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.header import (
    MAX_HEADER,
    Entry,
    Header,
    read_header,
    read_json_object,
)

#: Longest index and config that is read.
MAX_JSON = 2 * 2**20
MAX_SHARDS = 4096
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class TensorFiles:
    """The tensors of one checkpoint. A context manager, since it holds files open.

    Attributes:
        path: What was opened: a file, or the folder of shards.
        folder: Where its config.json would be.
        shards: For each file its path and header.
    """

    def __init__(self, path: str | Path) -> None:
        """Open a `.safetensors` file, an index, or a folder with either; read headers only.

        Raises:
            CheckpointError: If there is none, or it is not sound.
        """
        self.path = Path(path)
        self._open: list[BinaryIO] = []
        self.shards: list[tuple[Path, Header]] = []
        self._where: dict[str, tuple[int, Entry]] = {}
        try:
            self._open_all()
        except OSError as error:
            self.close()
            raise CheckpointError(f"{self.path}: {error.strerror or error}") from None
        except BaseException:
            self.close()
            raise

    def _open_all(self) -> None:
        files, index = _find(self.path)
        self.folder = files[0].parent
        self.index = index
        limit = MAX_HEADER
        for number, file in enumerate(files):
            handle, size = _open_regular(file)
            self._open.append(handle)
            header = read_header(handle, size, str(file), limit)
            limit = max(limit - header.start, 0)  # one limit for all, or many shards have none
            self.shards.append((file, header))
            for name, entry in header.entries.items():
                if name in self._where:
                    raise CheckpointError(f"{file}: tensor {name[:80]!r} is in two shards")
                self._where[name] = (number, entry)
        if index:
            stated = _weight_map(index)
            actual = {name: files[number].name for name, (number, _) in self._where.items()}
            if stated != actual:
                wrong = sorted(n for n in stated | actual if stated.get(n) != actual.get(n))
                raise CheckpointError(
                    f"{index} and its shards disagree on {len(wrong)} tensors, "
                    f"{wrong[0][:80]!r} first"
                )

    def __enter__(self) -> "TensorFiles":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files."""
        for handle in self._open:
            handle.close()
        self._open = []

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def entry(self, name: str) -> Entry:
        """Dtype and shape of a tensor."""
        return self._where[name][1]

    @property
    def entries(self) -> Mapping[str, Entry]:
        """All of them."""
        return {name: entry for name, (_, entry) in self._where.items()}

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.end - entry.begin for _, entry in self._where.values())

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
        number, entry = self._where[name]
        if not 0 <= first <= last <= entry.shape[0]:  # beyond are the bytes of other tensors
            raise IndexError(f"{name} has {entry.shape[0]} rows, asked for {first} to {last}")
        width = (entry.end - entry.begin) // max(entry.shape[0], 1)
        start = self.shards[number][1].start + entry.begin + first * width
        flat = self._bytes(number, start, (last - first) * width)
        return flat.view(entry.dtype).view(last - first, *entry.shape[1:])

    def _bytes(self, number: int, start: int, count: int) -> Tensor:
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
            got = handle.readinto(view[at:])  # type: ignore[attr-defined]
            if not got:
                raise CheckpointError(f"{self.shards[number][0]} became shorter while it was read")
            at += got
        return buffer


def read_json_file(path: Path) -> dict[str, object]:
    """A JSON object from a file beside the weights.

    Raises:
        CheckpointError: If it is too long, not a regular file, or not a JSON object.
    """
    try:
        handle, size = _open_regular(path)
        with handle:
            if size > MAX_JSON:
                raise CheckpointError(f"{path} has {size} bytes, more than {MAX_JSON}")
            text = handle.read(MAX_JSON) or b""
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror or error}") from None
    return read_json_object(text, str(path))


def _find(path: Path) -> tuple[list[Path], Path | None]:
    if path.is_dir():
        if (path / INDEX).exists():
            return _shards(path / INDEX)
        if (path / SINGLE).exists():
            return [path / SINGLE], None
        found = sorted(path.glob("*.safetensors"))
        if len(found) == 1:
            return found, None
        raise CheckpointError(
            f"{path} has {len(found)} .safetensors files, none of them {SINGLE}, and no {INDEX}; "
            f"name one"
        )
    if path.name.endswith(".index.json"):
        return _shards(path)
    if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is read; convert it to safetensors"
        )
    return [path], None


def _shards(index: Path) -> tuple[list[Path], Path]:
    names = sorted(set(_weight_map(index).values()))
    if not 1 <= len(names) <= MAX_SHARDS:
        raise CheckpointError(f"{index} names {len(names)} files, not 1 to {MAX_SHARDS}")
    for name in names:
        # A bare name: no folder, no parent, no drive, nothing that leads outside or steers a
        # terminal; a zero byte is not printable either.
        if (
            name != Path(name).name
            or name in ("", ".", "..")
            or "\\" in name
            or not name.isprintable()
        ):
            raise CheckpointError(f"{index} names {name[:80]!r}, which is not a plain file name")
        _check_inside(index.parent / name)
    return [index.parent / name for name in names], index


def _check_inside(file: Path) -> None:
    """A shard may be a link only to its own folder, or to `blobs` of a Hugging Face cache."""
    if not file.is_symlink():
        return
    try:
        folder, target = file.parent.resolve(), file.resolve()
    except RuntimeError:  # what pathlib says of links in a circle
        raise CheckpointError(f"{file} is a link that leads back to itself") from None
    blobs = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
    if target.parent not in (folder, blobs):
        raise CheckpointError(
            f"{file} is a link that leads out of its folder, to {str(target)[:80]!r}"
        )


def _weight_map(index: Path) -> dict[str, str]:
    names = read_json_file(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files")
    return names


def _open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Open a file and nothing else: a pipe or device would block or never end."""
    descriptor = None
    try:
        if stat.S_ISREG(os.stat(path).st_mode):  # looked at first: some devices act when opened
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except ValueError as error:  # a zero byte in the name
        raise CheckpointError(f"{str(path)!r} cannot be opened: {error}") from None
    if descriptor is None:
        raise CheckpointError(f"{path} is not a regular file")
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):  # another file since the first look
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0), state.st_size
