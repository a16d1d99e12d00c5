from collections.abc import Iterator

import fsspec
import pytest


@pytest.fixture
def memory() -> Iterator[str]:
    """The URL of an empty place that is not local."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    yield "memory://hub"
    fs.store.clear()
