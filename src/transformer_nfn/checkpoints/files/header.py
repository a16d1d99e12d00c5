"""The header of a safetensors file, read as what it is: text from a stranger.

The format: 8 bytes, the little-endian length N of the header; N bytes of JSON, for each tensor its
dtype, shape and the place of its bytes; then the bytes of all tensors, without holes. All of it is
checked before anything is allocated for it.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

import torch

from transformer_nfn.checkpoints.errors import CheckpointError

#: Longest header that is read, and longest of all shards' together. A tensor takes about 120 bytes,
#: so this is some 17,000 tensors, where Llama 3.1 405B has 1,138; whatever is in it, it is read
#: in a second.
MAX_HEADER = 2 * 2**20
MAX_AXES = 8
#: Most objects and lists in a JSON text. A tensor is three of them and at least 49 bytes, so every
#: sound header of MAX_HEADER has fewer; empty lists alone would be 700,000, and slow.
MAX_CONTAINERS = 2**17
#: Deepest JSON that is read; Python fails to print what is some hundred levels deep.
MAX_DEPTH = 32

#: The format's names of dtypes that we read.
DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "F64": torch.float64,
        "F32": torch.float32,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I64": torch.int64,
        "I32": torch.int32,
        "I16": torch.int16,
        "I8": torch.int8,
        "U8": torch.uint8,
        "BOOL": torch.bool,
    }
)
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
#: How files start that are no safetensors but often carry its name.
_OTHERS = {
    b"PK\x03\x04": "a zip file, as torch.save writes it (a pickle inside)",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"GGUF": "a GGUF file",
    b"\x89HDF": "an HDF5 file",
    b"version": "a Git LFS pointer, not the file itself",
}


@runtime_checkable
class Readable(Protocol):
    """What bytes come from."""

    def read(self, count: int, /) -> bytes | None:
        """The next bytes."""


@dataclass(frozen=True)
class Entry:
    """One tensor: its dtype, shape, and its first and last byte after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """All tensors of a file in the order of their bytes, and where these start."""

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    start: int


def read_header(file: Readable, size: int, where: str, limit: int = MAX_HEADER) -> Header:
    """Read and check a header.

    Args:
        file: At its beginning.
        size: Of the whole file in bytes.
        where: What error messages call it.
        limit: Longest header that is read.

    Raises:
        CheckpointError: If it is not a sound safetensors file.
    """
    first = file.read(8) or b""
    length = int.from_bytes(first, "little")
    if len(first) < 8 or length > size - 8:
        raise CheckpointError(_other_kind(first, where) or _cut_short(first, size, where))
    if length > limit:
        raise CheckpointError(f"{where} has a header of {length} bytes; at most {limit} are read")
    text = file.read(length) or b""
    # The format allows spaces at the end and nothing before the brace.
    if not text.startswith(b"{"):
        raise CheckpointError(
            _other_kind(first, where)
            or f"{where} is no safetensors file: its header is not a JSON object"
        )
    table = read_json_object(text, f"the header of {where}")
    metadata = _metadata(table.pop("__metadata__", {}), where)
    entries = {name: _entry(name, value, where) for name, value in table.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_places(ordered, size - 8 - length, where)
    return Header(MappingProxyType(ordered), MappingProxyType(metadata), 8 + length)


def laid_out(entries: Mapping[str, Entry], at: int = 0) -> dict[str, Entry]:
    """The same tensors one after the other, the first of them at some byte."""
    found = {}
    for name, entry in entries.items():
        size = math.prod(entry.shape) * entry.dtype.itemsize
        found[name] = Entry(entry.dtype, entry.shape, at, at + size)
        at += size
    return found


def write_header(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON, padded with spaces to a multiple of 8 so that tensors are aligned."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, entry in entries.items():
        table[name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [entry.begin, entry.end],
        }
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_json_object(text: bytes, where: str) -> dict[str, Any]:
    """A JSON object from outside, no key twice, no NaN, and neither deep nor crowded.

    Raises:
        CheckpointError: If it is not.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise CheckpointError(f"{where} has the same key twice in its JSON")
        return found

    if text.count(b"{") + text.count(b"[") > MAX_CONTAINERS:
        raise CheckpointError(f"{where} has more than {MAX_CONTAINERS} objects and lists")
    try:
        # Decoded here: json would take UTF-16 as well, which the format's other readers do not.
        value = json.loads(
            text.decode(), object_pairs_hook=unique, parse_int=_integer, parse_constant=_no_constant
        )
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, numbers too long, too deep
        raise CheckpointError(f"{where} has no readable JSON: {str(error)[:100]}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} should hold a JSON object, not a {type(value).__name__}")
    if _deep(value):
        raise CheckpointError(f"{where} is nested deeper than {MAX_DEPTH} levels")
    return value


def _integer(text: str) -> int:
    # Longer ones become no float, and Python refuses to print some of them.
    if len(text) > 100:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _deep(value: object) -> bool:
    """Whether it has more than MAX_DEPTH levels; without recursion, which is what they break."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)  # type: ignore[attr-defined]
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _other_kind(first: bytes, where: str) -> str | None:
    """What else it may be. Asked only of unsound files: 640, a length, starts like a pickle."""
    for magic, what in _OTHERS.items():
        if first.startswith(magic):
            return f"{where} is {what}, not safetensors; nothing of it was loaded"
    return None


def _cut_short(first: bytes, size: int, where: str) -> str:
    if len(first) < 8:
        return f"{where} has {len(first)} bytes, too few for a safetensors file"
    return (
        f"{where} is no safetensors file, or cut short: its header should have "
        f"{int.from_bytes(first, 'little')} bytes, and after its length come {size - 8}"
    )


def _metadata(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise CheckpointError(f"{where}: __metadata__ must map text to text")
    return value


def _entry(name: str, value: object, where: str) -> Entry:
    here = f"{where}, tensor {name[:80]!r}"
    if not name.isprintable():  # it would be shown, and steer a terminal
        raise CheckpointError(f"{here}: its name has characters that cannot be printed")
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{here}: needs exactly dtype, shape and data_offsets")
    if value["dtype"] not in DTYPES if isinstance(value["dtype"], str) else True:
        raise CheckpointError(
            f"{here}: dtype {str(value['dtype'])[:20]!r} is not one of {' '.join(DTYPES)}"
        )
    shape, places = value["shape"], value["data_offsets"]
    if not _counts(shape) or len(shape) > MAX_AXES:
        raise CheckpointError(f"{here}: shape {shape!r:.60} is not up to {MAX_AXES} counts")
    if not _counts(places) or len(places) != 2 or places[0] > places[1]:
        raise CheckpointError(f"{here}: data_offsets {places!r:.60} are not a begin and an end")
    dtype = DTYPES[value["dtype"]]
    # An empty tensor has no bytes that would bound its other axes, whose product overflows then.
    if math.prod(n for n in shape if n) * dtype.itemsize >= 2**63:
        raise CheckpointError(f"{here}: shape {shape} is too large")
    wanted = math.prod(shape) * dtype.itemsize
    if places[1] - places[0] != wanted:
        raise CheckpointError(
            f"{here}: shape {shape} of {value['dtype']} takes {wanted} bytes, "
            f"data_offsets give {places[1] - places[0]}"
        )
    return Entry(dtype, tuple(shape), *places)


def _counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_places(entries: Mapping[str, Entry], available: int, where: str) -> None:
    at = 0
    for name, entry in entries.items():
        if entry.begin != at:
            what = "overlaps the one before" if entry.begin < at else "leaves a hole before it"
            raise CheckpointError(f"{where}, tensor {name[:80]!r}: its place {what}")
        at = entry.end
    if at != available:
        raise CheckpointError(
            f"{where}: its tensors take {at} bytes, the file has {available} for them; "
            f"it is cut short or not a safetensors file"
        )
