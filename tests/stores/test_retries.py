import errno
import sys
from itertools import pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from transformer_nfn.stores import RangeFile, Store, UnreachableError, retries
from transformer_nfn.stores.errors import is_taken, is_transient


class AnsweredError(Exception):
    """As libraries of stores say it: with a status, or with a whole answer."""

    def __init__(self, **fields: Any) -> None:
        super().__init__("answered")
        self.__dict__.update(fields)


def s3_answer(status: int, code: str) -> AnsweredError:
    answer = {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}
    return AnsweredError(response=answer)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError(),
        ConnectionResetError(),
        OSError("no errno"),
        OSError(errno.EIO, "what s3fs makes of codes that it does not know"),
        AnsweredError(status=503),
        AnsweredError(status_code=429),
        AnsweredError(code=500),
        s3_answer(500, "InternalError"),
        caused(OSError(errno.EINVAL, ""), s3_answer(400, "IncompleteBody")),
        caused(FileNotFoundError(), s3_answer(404, "NoSuchUpload")),
        caused(OSError(errno.EIO, ""), s3_answer(409, "ConditionalRequestConflict")),
    ],
)
def test_what_passes(error: Exception) -> None:
    assert is_transient(error)
    assert not is_taken(error)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(),
        PermissionError(),
        IsADirectoryError(),
        UnreachableError(),
        OSError(errno.EINVAL, ""),
        ValueError(),
        KeyError("a bug"),
        AnsweredError(status=404),
        AnsweredError(status=501),
        caused(FileNotFoundError(), s3_answer(404, "NoSuchKey")),
        s3_answer(400, "InvalidArgument"),
    ],
)
def test_what_stays(error: Exception) -> None:
    assert not is_transient(error)
    assert not is_taken(error)


@pytest.mark.parametrize(
    "error",
    [FileExistsError(), caused(OSError(errno.EINVAL, ""), s3_answer(412, "PreconditionFailed"))],
)
def test_what_is_taken(error: Exception) -> None:
    assert is_taken(error)
    assert not is_transient(error)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that are asked for; the clock goes on by them, and nobody waits."""
    found: list[float] = []
    monkeypatch.setattr(retries.time, "sleep", found.append)
    monkeypatch.setattr(retries.time, "monotonic", lambda: sum(found))
    return found


def test_pauses_grow_and_end(pauses: list[float]) -> None:
    def fail() -> None:
        raise TimeoutError("no answer")

    with pytest.raises(UnreachableError, match=r"s3://a/b: asked 8 times in \d+ s, and the last"):
        retries.patiently(fail, "s3://a/b")
    assert len(pauses) == 7
    assert all(after > before * 0.99 for before, after in pairwise(pauses))


def test_time_is_bounded_too(pauses: list[float]) -> None:
    def hang() -> None:
        pauses.append(25.0)
        raise TimeoutError

    with pytest.raises(UnreachableError, match="asked 3 times in 75 s"):
        retries.patiently(hang, "x")


def test_the_answer_comes_in_the_end(pauses: list[float]) -> None:
    answers = iter([TimeoutError(), OSError("short"), None])

    def ask() -> int:
        if error := next(answers):
            raise error
        return 7

    assert retries.patiently(ask, "x") == 7
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_refused_by_a_server(status: int) -> None:
    def ask() -> None:
        raise AnsweredError(status=status)

    with pytest.raises(PermissionError, match="http://a: answered; credentials"):
        retries.patiently(ask, "http://a")


def test_errors_of_libraries_say_where_and_bugs_stay_bugs() -> None:
    def fail(error: Exception) -> None:
        raise error

    for error in (AnsweredError(status=418), ValueError("no URL")):
        with pytest.raises(UnreachableError, match=f"http://a: {type(error).__name__}: "):
            retries.patiently(lambda error=error: fail(error), "http://a")  # type: ignore[misc]
    for bug in (KeyError("a bug"), AttributeError("a bug")):
        with pytest.raises(type(bug)):
            retries.patiently(lambda bug=bug: fail(bug), "http://a")  # type: ignore[misc]


@pytest.mark.parametrize("url", ["none://a/b", "no-protocol-of-fsspec://a"])
def test_a_protocol_that_nobody_knows(url: str) -> None:
    with pytest.raises(UnreachableError, match="Protocol not known"):
        Store.at(url)


def test_a_file_is_read_by_ranges() -> None:
    content = bytes(range(256)) * 4
    asked = []

    def fetch(start: int, end: int) -> bytes:
        asked.append((start, end))
        return content[start:end]

    file = RangeFile(fetch, len(content), ahead=100)
    assert file.read(10) == content[:10]
    assert file.read(90) == content[10:100]
    file.seek(-4, 2)
    assert file.read() == content[-4:]
    file.seek(500)
    view = bytearray(300)
    assert (file.readinto(view), bytes(view)) == (300, content[500:800])
    assert asked == [(0, 100), (1020, 1024), (500, 800)]
    assert (file.fetched, file.tell()) == (404, 800)
    small = RangeFile(fetch, 50, ahead=100)
    small.seek(40)
    assert small.read(5) == content[40:45]
    assert asked[-1] == (0, 50)


def test_a_copy_of_a_store_asks_as_often() -> None:
    pytest.importorskip("s3fs")
    at, _ = Store.at("s3://bucket/a")
    other = ForkingPickler.loads(ForkingPickler.dumps(at))  # as when it is sent to a worker
    assert other.fs.retries == 1
    assert other.fs.config_kwargs["retries"]["total_max_attempts"] == 4


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sshfs", None)
    with pytest.raises(UnreachableError, match="pip install"):
        Store.at("ssh://host/folder")


def test_nobody_listens_there(pauses: list[float]) -> None:
    s3fs = pytest.importorskip("s3fs")
    settings: dict[str, Any] = {"config_kwargs": {"retries": {"total_max_attempts": 1}}}
    at = Store(s3fs.S3FileSystem("key", secret="s", endpoint_url="http://127.0.0.1:1", **settings))
    with pytest.raises(UnreachableError, match=r"asked 8 times .*Could not connect"):
        at.info("bucket/file")


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    s3fs = pytest.importorskip("s3fs")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/none")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/none")
    at = Store(s3fs.S3FileSystem(endpoint_url="http://127.0.0.1:1", skip_instance_cache=True))
    with pytest.raises(PermissionError, match=r"bucket/file: Unable to locate credentials"):
        at.info("bucket/file")
