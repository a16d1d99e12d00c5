from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.stores.faulty import Proxy
from transformer_nfn.stores import Store, UnreachableError, retries, store

READS = ("timeout", "500", "503", "reset", "lost", "cut", "short")
WRITES = ("timeout", "500", "503", "reset", "torn", "lost")
MIB = 2**20


def place(bucket: str, name: str = "file") -> tuple[Store, str]:
    return Store.at(f"{bucket}/{name}")


def uploads(at: Store, bucket: str) -> list[Any]:
    """Uploads in parts that nobody completed."""
    answer = at.fs.call_s3("list_multipart_uploads", Bucket="bucket")
    home = bucket.removeprefix("s3://bucket/")
    return [one for one in answer.get("Uploads") or [] if one["Key"].startswith(f"{home}/")]


def test_a_file_is_created_once(bucket: str) -> None:
    at, path = place(bucket)
    assert not at.exists(path)
    assert at.create(path, b"one") is True
    assert at.create(path, b"two") is False
    assert at.open(path).read() == b"one"
    at.replace(path, b"three")
    at.forget()
    assert at.open(path).read() == b"three"


def test_of_many_writers_one_creates_it(bucket: str) -> None:
    at, _ = place(bucket)
    for number in range(5):
        _, path = place(bucket, f"race-{number}")
        contents = [bytes([65 + writer]) * 1000 for writer in range(8)]
        with ThreadPoolExecutor(8) as threads:
            won = list(threads.map(lambda data, path=path: at.create(path, data), contents))
        assert won.count(True) == 1
        assert at.open(path).read() == contents[won.index(True)]


def test_an_upload_in_parts_is_created_once_too(
    s3: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART", 5 * MIB)
    at, path = place(bucket)
    first, second = b"a" * (11 * MIB), b"b" * (11 * MIB)
    assert at.create(path, first) is True
    assert s3.requests["POST"] == 2  # begin and complete
    assert s3.requests["PUT"] == 3
    assert at.create(path, second) is False
    assert s3.requests["POST"] == 2  # not even begun
    assert at.create(path, b"small") is False
    assert at.open(path).read() == first
    assert uploads(at, bucket) == []


def test_uploads_in_parts_at_the_same_time_leave_one_whole_file(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART", 5 * MIB)
    at, path = place(bucket)
    contents = [bytes([65 + writer]) * (10 * MIB) for writer in range(2)]
    with ThreadPoolExecutor(2) as threads:
        won = list(threads.map(lambda data: at.create(path, data), contents))
    # SeaweedFS 4.48 looks and completes in two steps, so more than one may be told that it won.
    assert any(won)
    assert at.open(path).read() in contents
    assert at.create(path, contents[0]) is False
    assert uploads(at, bucket) == []


@pytest.mark.parametrize("kind", READS)
def test_reading_survives(kind: str, s3: Proxy, bucket: str) -> None:
    at, path = place(bucket)
    content = bytes(range(256)) * 1000
    at.create(path, content)
    s3.plan(kind, "GET", "file")
    assert at.read(path, 1000, 200_000) == content[1000:200_000]
    assert s3.faults == {kind: 1}


@pytest.mark.parametrize("kind", ["timeout", "503", "reset"])
def test_asking_survives(kind: str, s3: Proxy, bucket: str) -> None:
    at, path = place(bucket)
    at.create(path, b"1234")
    at.forget()
    s3.plan(kind, "HEAD", "file")
    assert at.info(path)["size"] == 4
    assert s3.faults == {kind: 1}


@pytest.mark.parametrize("kind", ["503", "cut", "short"])
def test_listing_survives(kind: str, s3: Proxy, bucket: str) -> None:
    at, path = place(bucket)
    at.create(path, b"1234")
    at.forget()
    s3.plan(kind, "GET", "list-type")
    assert list(at.find(path.rpartition("/")[0])) == [path]
    assert s3.faults == {kind: 1}


@pytest.mark.parametrize("kind", WRITES)
def test_creating_survives(kind: str, s3: Proxy, bucket: str) -> None:
    at, path = place(bucket)
    content = bytes(range(256)) * 1000
    s3.plan(kind, "PUT", "file")
    # After an answer that was lost, the name is taken: by this very call.
    assert at.create(path, content) is (kind != "lost")
    assert s3.faults == {kind: 1}
    assert at.open(path).read() == content


@pytest.mark.parametrize("kind", ["503", "torn", "lost"])
def test_a_part_is_sent_again_alone(
    kind: str, s3: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART", 5 * MIB)
    at, path = place(bucket)
    content = bytes(range(256)) * (10 * 2**12)
    s3.plan(kind, "PUT", "partNumber=2")
    assert at.create(path, content) is True
    assert (s3.faults, s3.requests["PUT"], s3.requests["POST"]) == ({kind: 1}, 3, 2)
    assert at.open(path).read() == content


@pytest.mark.parametrize("kind", ["500", "lost"])
@pytest.mark.parametrize("step", ["?uploads", "?uploadId="])
def test_beginning_and_completing_survive(
    kind: str, step: str, s3: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PART", 5 * MIB)
    at, path = place(bucket)
    content = b"x" * (10 * MIB)
    s3.plan(kind, "POST", step)
    created = at.create(path, content)
    assert created or (kind, step) == ("lost", "?uploadId=")
    assert s3.faults == {kind: 1}
    assert at.open(path).read() == content
    assert at.create(path, b"y") is False


def test_all_pages_of_a_listing(s3: Proxy, bucket: str) -> None:
    at, path = place(bucket, "many")
    direct = type(at.fs)(endpoint_url=f"http://{s3.upstream}")
    direct.pipe({f"{path}/{number:04d}": b"x" for number in range(1005)})
    at.forget()
    s3.plan("503", "GET", "continuation-token")
    assert len(at.find(path)) == 1005
    assert s3.requests["GET"] == 3  # two pages, one of them twice
    at.forget()
    assert len(at.entries(path)) == 1005


def test_it_gives_up_and_says_so(s3: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "ATTEMPTS", 2)
    at, path = place(bucket)
    at.create(path, b"1")
    s3.plan("cut", "GET", "file", times=99)
    with pytest.raises(UnreachableError, match=r"file: asked 2 times .*run the same command"):
        at.read(path, 0, 1)
    assert s3.requests["GET"] == 2


def test_what_asking_again_cannot_mend_is_asked_once(
    s3: Proxy, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, path = place(bucket)
    with pytest.raises(FileNotFoundError):
        at.read(path, 0, 1)
    assert s3.requests == {"GET": 1}
    with pytest.raises(FileNotFoundError):
        at.create("no-such-bucket/file", b"")
    assert s3.requests["PUT"] == 1
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    stranger = Store(type(at.fs)(skip_instance_cache=True))
    with pytest.raises(PermissionError, match=r"file: .*credentials and permissions"):
        stranger.create(path, b"")
    assert s3.requests["PUT"] == 2
