"""Files behind a URL, read by ranges: a header, then only the tensors that are asked for."""

from typing import Any

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError

#: Least bytes of a request: about what arrives in the time that a request takes anyway, so that
#: a header is one request, and so is a small network.
AHEAD = 2**17


class RemotePath:
    """A file or folder of a file system that fsspec knows, with what we need of a `Path`.

    Meant for object stores and http, which have no links that could lead elsewhere.

    Args:
        url: Such as ``s3://bucket/folder/model.safetensors``.
    """

    def __init__(self, url: str) -> None:
        self._fs: Any
        self._fs, path = url_to_fs(url)
        self._path: str = path.rstrip("/")

    def _at(self, path: str) -> "RemotePath":
        other = RemotePath.__new__(RemotePath)
        other._fs, other._path = self._fs, path
        return other

    def __truediv__(self, name: str) -> "RemotePath":
        return self._at(f"{self._path}/{name}")

    def __str__(self) -> str:
        return str(self._fs.unstrip_protocol(self._path))

    @property
    def name(self) -> str:
        """The last part."""
        return self._path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        stem, dot, ending = self.name.rpartition(".")
        return dot + ending if stem else ""

    @property
    def parent(self) -> "RemotePath":
        """The folder it is in."""
        return self._at(self._path.rpartition("/")[0])

    def is_dir(self) -> bool:
        """Whether it is a folder; asked only of what does not look like a file."""
        return self.suffix not in (".safetensors", ".json") and bool(self._fs.isdir(self._path))

    def exists(self) -> bool:
        """Whether it is there."""
        return bool(self._fs.exists(self._path))

    def glob(self, pattern: str) -> list["RemotePath"]:
        """What matches a pattern in the folder."""
        return [self._at(path) for path in self._fs.glob(f"{self._path}/{pattern}")]

    def open(self) -> "RangeFile":
        """For reading; asks for its size.

        Raises:
            CheckpointError: If it is not there, or no file.
        """
        try:
            info = self._fs.info(self._path)
        except FileNotFoundError:
            raise CheckpointError(f"{self} does not exist") from None
        if info["type"] != "file" or info.get("size") is None:
            raise UnreadableError(f"{self} is no file, or does not say how large it is")
        return RangeFile(self._fs, self._path, int(info["size"]), str(self))


class RangeFile:
    """A remote file of which each read is one request, for at least `AHEAD` bytes.

    The last short answer is kept, since biases and norms lie side by side.

    Attributes:
        size: Of the whole file in bytes.
        fetched: Bytes that came so far.
    """

    def __init__(self, fs: Any, path: str, size: int, where: str) -> None:
        self.size, self.fetched = size, 0
        self._fs, self._path, self._where = fs, path, where
        self._at = 0
        self._kept, self._kept_at = b"", 0

    def seek(self, place: int) -> None:
        """Where the next read starts."""
        self._at = place

    def read(self, count: int) -> bytes:
        """The next bytes; fewer at the end of the file."""
        count = min(count, self.size - self._at)
        if count <= 0:
            return b""
        first = self._at - self._kept_at
        if not 0 <= first <= len(self._kept) - count:
            self._fetch(self._at, max(count, AHEAD))
            first = 0
        self._at += count
        answer = self._kept[first : first + count]
        if len(self._kept) > AHEAD:  # nobody reads a tensor twice
            self._kept = b""
        return answer

    def readinto(self, view: memoryview) -> int:
        """Fill a buffer with what comes next."""
        got = self.read(len(view))
        view[: len(got)] = got
        return len(got)

    def close(self) -> None:
        """Forget what is kept."""
        self._kept = b""

    def _fetch(self, start: int, count: int) -> None:
        end = min(start + count, self.size)
        got = self._fs.cat_file(self._path, start=start, end=end)
        self.fetched += len(got)
        if len(got) != end - start:
            raise UnreadableError(
                f"{self._where}: {end - start} bytes from {start} were asked for, {len(got)} came; "
                "it changed, or its server does not give ranges"
            )
        self._kept, self._kept_at = got, start
