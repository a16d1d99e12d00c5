import json
import struct
import tempfile
from typing import Any

import pytest
import torch
from safetensors.torch import save

from transformer_nfn.checkpoints import CheckpointError, read_header
from transformer_nfn.checkpoints.files.header import (
    DTYPES,
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_HEADER,
    read_json_object,
    write_header,
)

SOUND = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def raw(header: dict[str, Any] | bytes, data: int = 24) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data)


def read(content: bytes) -> Any:
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(content)
        file.seek(0)
        return read_header(file, len(content), "file")


def refuse(content: bytes, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read(content)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


def test_every_dtype_and_shape_of_a_sound_file() -> None:
    tensors = {
        f"{name}-{shape}": torch.ones(shape, dtype=dtype)
        for name, dtype in DTYPES.items()
        for shape in ((), (0,), (3,), (2, 0, 3), (1, 2, 3, 4))
    }
    content = save(tensors, {"key": "value"})
    header = read(content)
    assert dict(header.metadata) == {"key": "value"}
    assert {n: (e.dtype, e.shape) for n, e in header.entries.items()} == {
        n: (t.dtype, tuple(t.shape)) for n, t in tensors.items()
    }
    assert header.start + max(e.end for e in header.entries.values()) == len(content)


def test_what_is_written_is_read_again() -> None:
    content = save({"b": torch.zeros(3), "a": torch.zeros(2, 2).half()})
    header = read(content)
    text = write_header(header.entries, {"é": "ü"})
    again = read(text + content[header.start :])
    assert (again.entries, again.metadata) == (header.entries, {"é": "ü"})
    assert again.start % 8 == 0


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580, 0x10280])
def test_a_length_whose_bytes_start_like_a_pickle_is_a_length(length: int) -> None:
    assert set(read(raw(json.dumps({"a": SOUND}).encode().ljust(length))).entries) == {"a"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c", "is a pickle, not safetensors"),
        (b"\x80\x02}q\0(X\1\0\0\0", "is a pickle, not safetensors"),
        (b"\x80\x02.", "is a pickle"),
        (b"PK\x03\x04\x14\0\0\0\0\0", "is a zip file, as torch.save writes it"),
        (b"GGUF\x03\0\0\0\0\0\0\0", "is a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"\x80\x02" + bytes(6) + b"x" * 640, "is a pickle"),
        (b"", "has 0 bytes, too few"),
        (b"1234567", "has 7 bytes, too few"),
        (b"<html>404</html>", "is no safetensors file, or cut short"),
        (struct.pack("<Q", 0) + b"{}", "its header is not a JSON object"),
        (struct.pack("<Q", 2**63) + b"{}", "should have 9223372036854775808 bytes"),
        (struct.pack("<Q", 3) + b"{}", "should have 3 bytes, and after its length come 2"),
        (raw(b" {}"), "its header is not a JSON object"),
        (raw(b"[]"), "its header is not a JSON object"),
        (raw(b"{" + b" " * MAX_HEADER + b"}"), f"at most {MAX_HEADER} are read"),
    ],
)
def test_other_files_are_named(content: bytes, what: str) -> None:
    refuse(content, what)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"{", "has no readable JSON"),
        (b"{}\0", "has no readable JSON: Extra data"),
        (b'{"a":"\xff"}', "no readable JSON: 'utf-8' codec"),
        ('{"a":1}'.encode("utf-16-le"), "has no readable JSON"),
        (b'{"a":NaN}', "NaN is not JSON"),
        (b'{"a":[-Infinity]}', "-Infinity is not JSON"),
        (b'{"a":' + b"9" * 101 + b"}", "a number of 101 digits"),
        (b'{"a":' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b'{"a":1,"a":1}', "has the same key twice"),
        (b'{"a":[{"b":1,"b":2}]}', "has the same key twice"),
        (b'{"a":' + b"[" * 900 + b"]" * 900 + b"}", f"is nested deeper than {MAX_DEPTH} levels"),
        (b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}", "maximum recursion depth exceeded"),
        (b'{"a":[' + b"[]," * MAX_CONTAINERS + b"0]}", f"more than {MAX_CONTAINERS} objects"),
        (b'{"a":' * 2 * 10**5, f"more than {MAX_CONTAINERS} objects"),
    ],
)
def test_json_that_is_not_read(text: bytes, what: str) -> None:
    refuse(raw(text), f"^the header of file .*{what}")
    with pytest.raises(CheckpointError, match=what):
        read_json_object(text, "config")


@pytest.mark.parametrize("text", [b"[]", b"null", b'"text"', b"1"])
def test_json_that_is_no_object(text: bytes) -> None:
    with pytest.raises(CheckpointError, match="config should hold a JSON object, not a "):
        read_json_object(text, "config")


def test_every_sound_header_has_fewer_containers_than_are_allowed() -> None:
    shortest = b'"":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
    assert 3 * MAX_HEADER / len(shortest) + 1 < MAX_CONTAINERS


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dtype": "F33"}, "dtype 'F33' is not one of F64 F32"),
        ({"dtype": None}, "dtype 'None' is not one of"),
        ({"dtype": ["F32"]}, "is not one of"),
        ({"dtype": "F64"}, r"shape \[2, 3\] of F64 takes 48 bytes, data_offsets give 24"),
        ({"shape": [2, 4]}, r"takes 32 bytes, data_offsets give 24"),
        ({"shape": [-2, -3]}, r"shape \[-2, -3\] is not up to 8 counts"),
        ({"shape": [2.0, 3]}, r"shape \[2.0, 3\] is not"),
        ({"shape": [True, 6]}, r"shape \[True, 6\] is not"),
        ({"shape": "\x1b[2J"}, r"shape '\\x1b\[2J' is not"),
        ({"shape": None}, "shape None is not"),
        ({"shape": [1] * 9}, "is not up to 8 counts"),
        ({"shape": [2**63, 0]}, "is not up to 8 counts"),
        ({"shape": [0, 2**62, 2**62]}, "is too large"),
        ({"shape": [2**32, 2**32, 6]}, "is too large"),
        ({"data_offsets": [24, 0]}, r"data_offsets \[24, 0\] are not a begin and an end"),
        ({"data_offsets": [-24, 0]}, "are not a begin and an end"),
        ({"data_offsets": [0.0, 24.0]}, "are not a begin and an end"),
        ({"data_offsets": ["0", "24"]}, "are not a begin and an end"),
        ({"data_offsets": [False, 24]}, "are not a begin and an end"),
        ({"data_offsets": [0, 12, 24]}, "are not a begin and an end"),
        ({"data_offsets": 24}, "are not a begin and an end"),
        ({"data_offsets": [1, 25]}, "its place leaves a hole before it"),
        ({"more": 1}, "needs exactly dtype, shape and data_offsets"),
    ],
)
def test_entries_that_lie(change: dict[str, Any], what: str) -> None:
    refuse(raw({"name": SOUND | change}), f"^file, tensor 'name': .*{what}")


@pytest.mark.parametrize("value", [None, [], "F32", {}, {"dtype": "F32"}])
def test_entries_that_are_none(value: Any) -> None:
    refuse(raw({"name": value}), "tensor 'name': needs exactly dtype, shape and data_offsets")


def test_places_overlap_or_do_not_fill_the_file() -> None:
    refuse(raw({"a": SOUND, "b": SOUND}), "tensor 'b': its place overlaps the one before")
    refuse(raw({"a": SOUND}, data=23), "tensors take 24 bytes, the file has 23 for them")
    refuse(raw({"a": SOUND}, data=25), "tensors take 24 bytes, the file has 25 for them")
    refuse(raw({}, data=1), "tensors take 0 bytes, the file has 1")


def test_entries_may_stand_in_any_order() -> None:
    second = SOUND | {"data_offsets": [24, 48]}
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [24, 24]}
    header = read(raw({"b": second, "none": empty, "a": SOUND}, data=48))
    assert list(header.entries) == ["a", "none", "b"]


@pytest.mark.parametrize("name", ["a\0b", "\x1b[2J", "a\nb", "\u202e", "\ud800", "\0" * 10**5])
def test_names_that_steer_a_terminal(name: str) -> None:
    refuse(raw({name: SOUND}), "its name has characters that cannot be printed")


@pytest.mark.parametrize("name", ["", " ", "../../etc/passwd", "é", "x" * 10**5])
def test_names_are_only_names(name: str) -> None:
    assert set(read(raw({name: SOUND})).entries) == {name}


@pytest.mark.parametrize("value", [None, 1, [], "text", {"a": 1}, {"a": None}, {"a": {"b": "c"}}])
def test_metadata_that_are_no_text(value: Any) -> None:
    refuse(raw({"__metadata__": value, "a": SOUND}), "__metadata__ must map text to text")
