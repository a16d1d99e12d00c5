"""Checkpoints behind a URL: paths there, and files that are read by ranges."""

from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError
from transformer_nfn.stores import RangeFile, Store


class RemotePath:
    """A file or folder of a file system that fsspec knows, with what we need of a `Path`.

    Meant for object stores and http, which have no links that could lead elsewhere.

    Args:
        url: Such as ``s3://bucket/folder/model.safetensors``.
    """

    def __init__(self, url: str) -> None:
        self._store, self._path = Store.at(url)

    def _at(self, path: str) -> "RemotePath":
        other = RemotePath.__new__(RemotePath)
        other._store, other._path = self._store, path
        return other

    def __truediv__(self, name: str) -> "RemotePath":
        return self._at(f"{self._path}/{name}")

    def __str__(self) -> str:
        return self._store.url(self._path)

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
        return self.suffix not in (".safetensors", ".json") and self._store.is_folder(self._path)

    def exists(self) -> bool:
        """Whether it is there."""
        return self._store.exists(self._path)

    def glob(self, pattern: str) -> list["RemotePath"]:
        """What matches a pattern in the folder."""
        return [self._at(path) for path in self._store.glob(f"{self._path}/{pattern}")]

    def open(self) -> RangeFile:
        """For reading; asks for its size.

        Raises:
            CheckpointError: If it is not there, or no file.
        """
        try:
            return self._store.open(self._path)
        except FileNotFoundError:
            raise CheckpointError(f"{self} does not exist") from None
        except IsADirectoryError as error:
            raise UnreadableError(str(error)) from None
