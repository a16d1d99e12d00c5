"""A file behind a URL, read by ranges."""

import io
from collections.abc import Callable
from typing import Any

#: Least bytes of a request: about what arrives in the time that a request takes anyway.
AHEAD = 2**17


class RangeFile(io.RawIOBase):
    """A remote file of which each read is one request, for at least some bytes.

    The last short answer is kept, since what is small lies side by side.

    Args:
        fetch: Gives the bytes from a place to before another, exactly these.
        size: Of the whole file in bytes.
        ahead: Least bytes of a request.

    Attributes:
        size: Of the whole file in bytes.
        fetched: Bytes that came so far.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], size: int, ahead: int = AHEAD) -> None:
        self.size, self.fetched = size, 0
        self._fetch, self._ahead = fetch, ahead
        self._at = 0
        self._kept, self._kept_at = b"", 0

    def readable(self) -> bool:
        """It can be read, and not written."""
        return True

    def seekable(self) -> bool:
        """Seeking costs nothing."""
        return True

    def tell(self) -> int:
        """Where the next read starts."""
        return self._at

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Where the next read shall start."""
        self._at = place + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        return self._at

    def read(self, count: int = -1) -> bytes:
        """The next bytes, all if negative; fewer at the end of the file."""
        left = self.size - self._at
        count = left if count < 0 else min(count, left)
        if count <= 0:
            return b""
        first = self._at - self._kept_at
        if not 0 <= first <= len(self._kept) - count:
            # A small file whole: a footer is read before what it describes.
            start = 0 if self.size <= self._ahead else self._at
            end = min(self._at + max(count, self._ahead), self.size)
            self._kept, self._kept_at = self._fetch(start, end), start
            self.fetched += end - start
            first = self._at - start
        self._at += count
        answer = self._kept[first : first + count]
        if len(self._kept) > self._ahead:  # nobody reads a tensor twice
            self._kept = b""
        return answer

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with what comes next."""
        view = memoryview(buffer).cast("B")
        got = self.read(len(view))
        view[: len(got)] = got
        return len(got)

    def close(self) -> None:
        """Forget what is kept."""
        self._kept = b""
        super().close()
