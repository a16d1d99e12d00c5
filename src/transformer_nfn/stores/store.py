"""A file system behind a URL: every request of the package to one goes through here."""

import inspect
from typing import Any

import fsspec  # type: ignore[import-untyped]
from fsspec.core import split_protocol, url_to_fs  # type: ignore[import-untyped]
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from transformer_nfn.stores.errors import UnreachableError, is_missing, is_taken
from transformer_nfn.stores.rangefile import AHEAD, RangeFile
from transformer_nfn.stores.retries import patiently

#: File systems that create a file whole and only if there is none: S3 (If-None-Match), Google
#: (ifGenerationMatch) and Azure (overwrite=False), and `memory` for tests. All others would break
#: the promise silently: fsspec's fallback (sftp, smb, hdfs, arrow) looks first and then streams a
#: file that is visible half-written, and caches, jupyter, zip and http drop ``mode`` altogether.
CREATE_ONLY = {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory"}

#: Our extras that bring the packages of some protocols.
_EXTRAS = {"s3": "s3", "s3a": "s3", "hf": "hub"}
#: Bytes of a part of an upload to S3; what is shorter than two of them is one request. Large, since
#: all servers that we tried create a file once by one request, and none surely in parts.
PART = 2**28
#: How often the S3 client sends one request. This is inside of our own patience, since a part of
#: an upload that fails must not send all parts again.
_REQUESTS = {"mode": "standard", "total_max_attempts": 4}


class Store:
    """A file system that fsspec knows; can be pickled. Paths are as fsspec spells them.

    Reading and writing raise `UnreachableError` if requests fail for too long.

    Args:
        fs: The file system.
    """

    def __init__(self, fs: Any) -> None:
        self.fs = fs
        names = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        self._s3 = not names.isdisjoint({"s3", "s3a"})
        self._http = not names.isdisjoint({"http", "https"})
        self._known = not names.isdisjoint(CREATE_ONLY)
        if self._s3:
            fs.retries = 1  # s3fs would ask five times around the client's four, for minutes

    @staticmethod
    def at(url: str) -> "tuple[Store, str]":
        """The store of a URL, and the path in it.

        Raises:
            UnreachableError: If there is no such protocol, or a package for it is missing.
        """
        options = {}
        if split_protocol(url)[0] in ("s3", "s3a"):
            set_by_user = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
            options["config_kwargs"] = {"retries": _REQUESTS, **set_by_user}
        try:
            fs, path = url_to_fs(url, **options)
        except ImportError as error:
            extra = _EXTRAS.get(split_protocol(url)[0] or "")
            what = f"'transformer-nfn[{extra}]'" if extra else "the package that it names"
            raise UnreachableError(f"{url}: {error}; `pip install {what}`") from None
        except ValueError as error:  # a protocol that nobody knows, or a URL that is none
            raise UnreachableError(f"{url}: {error}; see the page on stores for URLs") from None
        return Store(fs), path.rstrip("/")

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.fs,)

    def url(self, path: str) -> str:
        """A path with its protocol."""
        return str(self.fs.unstrip_protocol(path))

    def forget(self, path: str | None = None) -> None:
        """Forget listings: what is asked next is as it is now."""
        self.fs.invalidate_cache(path)

    def info(self, path: str) -> dict[str, Any]:
        """What the store says of a file or folder.

        Raises:
            FileNotFoundError: If there is none.
        """

        def ask() -> dict[str, Any]:
            try:
                found: dict[str, Any] = self.fs.info(path)
            except FileNotFoundError as error:
                # fsspec says so on http whatever went wrong, and keeps that as the cause.
                if not self._http or error.__cause__ is None or is_missing(error.__cause__):
                    raise
                raise error.__cause__ from None
            return found

        return patiently(ask, self.url(path))

    def file_info(self, path: str) -> dict[str, Any]:
        """What the store says of a file; on S3 without looking for a folder of that name.

        For what is often not there: else a listing follows, which costs as much as a write.

        Raises:
            FileNotFoundError: If there is none.
        """
        if self._http:
            try:
                return self.info(path)
            except PermissionError as error:  # what some servers say of all that is not there
                raise FileNotFoundError(str(error)) from None
        if not self._s3:
            return self.info(path)
        bucket, key, _ = self.fs.split_path(path)
        found = patiently(
            lambda: self.fs.call_s3("head_object", Bucket=bucket, Key=key), self.url(path)
        )
        return {"type": "file", "size": found["ContentLength"], "ETag": found["ETag"]}

    def entries(self, path: str) -> list[dict[str, Any]]:
        """What is in a folder."""
        found: list[dict[str, Any]]
        found = patiently(lambda: self.fs.ls(path, detail=True), self.url(path))
        return found

    def find(self, path: str) -> dict[str, dict[str, Any]]:
        """All files below a folder, by path."""
        found: dict[str, dict[str, Any]]
        found = patiently(lambda: self.fs.find(path, detail=True), self.url(path))
        return found

    def glob(self, pattern: str) -> list[str]:
        """The paths that match a pattern."""
        found: list[str] = patiently(lambda: self.fs.glob(pattern), self.url(pattern))
        return found

    def exists(self, path: str) -> bool:
        """Whether there is a file or folder."""
        try:
            return bool(self.file_info(path) if self._http else self.info(path))
        except FileNotFoundError:
            return False

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder; a failure is no "no", as it is for fsspec's own."""
        if self._http:  # where only a listing tells
            return bool(patiently(lambda: self.fs.isdir(path), self.url(path)))
        try:
            return bool(self.info(path)["type"] == "directory")
        except FileNotFoundError:
            return False

    def open(self, path: str, ahead: int = AHEAD) -> RangeFile:
        """A file for reading; asks for its size.

        Args:
            path: Of the file.
            ahead: Least bytes of a request.

        Raises:
            FileNotFoundError: If there is none.
            OSError: If it is no file.
        """
        info = self.info(path)
        if info["type"] != "file" or info.get("size") is None:
            raise IsADirectoryError(f"{self.url(path)} is no file, or does not say how large it is")
        return RangeFile(lambda start, end: self.read(path, start, end), int(info["size"]), ahead)

    def read(self, path: str, start: int, end: int) -> bytes:
        """The bytes of a file from a place to before another, all of them."""

        def ask() -> bytes:
            got: bytes = self.fs.cat_file(path, start=start, end=end)
            if len(got) != end - start:
                # Too few may be a proxy that cut them off; too many are no better next time.
                raise (OSError if len(got) < end - start else UnreachableError)(
                    f"{self.url(path)}: {end - start} bytes from {start} were asked for, "
                    f"{len(got)} came; it changed, or its server does not give ranges"
                )
            return got

        return patiently(ask, self.url(path))

    @property
    def is_local(self) -> bool:
        """Whether its paths are those of this machine's disks."""
        return isinstance(self.fs, LocalFileSystem)

    @property
    def creates(self) -> bool:
        """Whether it is known to create a file whole and only if there is none."""
        method = self.fs._pipe_file if self.fs.async_impl else self.fs.pipe_file
        return self._known and "mode" in inspect.signature(method).parameters

    def create(self, path: str, data: bytes) -> bool:
        """Create a file, unless there is one: False if there is.

        It may be there by this very call, of which an answer was lost: a request that is sent again
        cannot know. So give equal names to equal contents only.
        """
        options = {"chunksize": PART} if self._s3 else {}
        in_parts = self._s3 and len(data) >= 2 * PART

        def ask() -> bool:
            try:
                # Some servers heed no condition when parts are put together.
                if in_parts and self._has_file(path):
                    return False
                self.fs.pipe_file(path, data, mode="create", **options)
            except Exception as error:
                if is_taken(error):
                    return False
                raise
            return True

        return patiently(ask, self.url(path))

    def _has_file(self, path: str) -> bool:
        try:
            return bool(self.file_info(path))
        except FileNotFoundError:
            return False

    def replace(self, path: str, data: bytes) -> None:
        """Write a file, in place of what may be there."""
        patiently(lambda: self.fs.pipe_file(path, data), self.url(path))
