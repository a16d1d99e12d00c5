import gzip
import tracemalloc
from pathlib import Path

import pytest
import torch

from tests.zoo.tasks.samples import idx
from transformer_nfn.zoo.tasks import DataError
from transformer_nfn.zoo.tasks.idx import read_idx

VALUES = torch.arange(5 * 2 * 3, dtype=torch.uint8).reshape(5, 2, 3)
GOOD = idx(VALUES)


@pytest.fixture(params=["plain", "zipped.gz"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def write(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content) if path.suffix else content)


def test_values_are_read(path: Path) -> None:
    write(path, GOOD)
    assert torch.equal(read_idx(path, (2, 3)), VALUES)
    write(path, idx(VALUES[:, 1, 2].contiguous()))
    assert torch.equal(read_idx(path), VALUES[:, 1, 2])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "starts with nothing, expected 00000803"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "starts with 00000d03, expected 00000803"),
        (idx(VALUES[:, 0]), "starts with 00000802, expected 00000803"),
        (GOOD[:9], "ends inside its header"),
        (GOOD[:-1], "30 bytes by its header, but only 29"),
        (GOOD + b"\x00", "30 bytes by its header, but more"),
        (GOOD[:8] + b"\x00\x00\x00\x03\x00\x00\x00\x02" + GOOD[16:], r"sizes \[5, 3, 2\]"),
        (GOOD[:4] + b"\x00\x00\x00\x00" + GOOD[8:16], r"sizes \[0, 2, 3\]"),
        (GOOD[:4] + b"\xff\xff\xff\xff" + GOOD[8:], r"sizes \[4294967295, 2, 3\], expected"),
    ],
)
def test_other_content_is_refused(path: Path, content: bytes, message: str) -> None:
    write(path, content)
    with pytest.raises(DataError, match=message):
        read_idx(path, (2, 3))


def test_memory_is_not_taken_on_the_header_s_word(path: Path) -> None:
    write(path, GOOD[:4] + (1_000_000).to_bytes(4, "big") + GOOD[8:])
    tracemalloc.start()
    with pytest.raises(DataError, match="6000000 bytes by its header, but only 30"):
        read_idx(path, (2, 3))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3_000_000


@pytest.mark.parametrize("damage", ["cut", "changed", "no gzip"])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, damage: str) -> None:
    content = bytearray(gzip.compress(GOOD))
    if damage == "cut":
        content = content[:-10]
    elif damage == "changed":
        content[20] ^= 0xFF
    else:
        content = bytearray(GOOD)
    (tmp_path / "f.gz").write_bytes(content)
    with pytest.raises(DataError, match="fetch it again"):
        read_idx(tmp_path / "f.gz", (2, 3))
