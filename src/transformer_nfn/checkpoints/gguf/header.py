"""The header of a GGUF file, read as what it is: bytes from a stranger.

The format: "GGUF", a version, how many tensors and settings there are; the settings, each a name, a
type and a value; the tensors, each a name, its axes from the last to the first, a type and where
its bytes are; then the bytes of all tensors, each at a multiple of the alignment. All of it is
checked before anything is allocated for it.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.files.header import MAX_AXES, Readable

#: Longest header that is read. Most of one is the tokenizer: 10 MB for a vocabulary of 262,000.
MAX_HEADER = 64 * 2**20
MAX_TENSORS = 2**15
MAX_SETTINGS = 2**12
#: Strings in lists, all together; some 600,000 are words and merges of the largest vocabularies.
MAX_STRINGS = 2**20
#: Longest text that is kept, and most numbers of all lists. Longer ones are of the tokenizer.
_KEPT, _NUMBERS = 2**12, 2**14
#: What stands for a list of words, or what is too long.
NOT_KEPT = "(not kept)"
_LARGEST_ALIGNMENT = 2**16
_CHUNK = 2**20

#: Types of settings: how `struct` reads them.
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _LIST = 8, 9

#: Types of tensors by number: name, numbers in a block, bytes of a block.
TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: its type's number, its axes from the first to the last, and its bytes."""

    type: int
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class GgufHeader:
    """Settings, tensors in the order of their bytes, and where these start."""

    settings: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]
    start: int


class _Bytes:
    """The bytes of a header in order, some at a time and not too many."""

    def __init__(self, file: Readable, size: int, where: str, limit: int) -> None:
        self._file, self._where = file, where
        self._left, self._limited = min(size, limit), size > limit
        self._buffer, self._at, self.read = b"", 0, 0

    def take(self, count: int) -> bytes:
        missing = count - (len(self._buffer) - self._at)
        if missing > self._left:
            if self._limited:
                raise CheckpointError(f"{self._where}: its header is longer than is read")
            raise CheckpointError(f"{self._where} ends before its header does")
        while missing > 0:
            more = self._file.read(min(max(missing, _CHUNK), self._left)) or b""
            if not more:
                raise CheckpointError(f"{self._where} became shorter while it was read")
            self._left -= len(more)
            self._buffer, self._at = self._buffer[self._at :] + more, 0
            missing = count - len(self._buffer)
        found = self._buffer[self._at : self._at + count]
        self._at += count
        self.read += count
        return found

    def skip(self, count: int) -> None:
        while count > 0:
            count -= len(self.take(min(count, _CHUNK)))

    def number(self, form: str) -> Any:
        """A number; of a float32 the shortest that it is, 1e-5 and not 9.99999974e-6."""
        (found,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return float(str(np.float32(found))) if form == "<f" else found

    def numbers(self, form: str, count: int) -> list[Any]:
        return list(struct.unpack(f"<{count}{form[1:]}", self.take(count * struct.calcsize(form))))

    def text(self) -> str:
        """A string, if it is not longer than is kept."""
        length = self.number("<Q")
        if length > _KEPT:
            self.skip(length)
            return NOT_KEPT
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self._where} has a text that is no UTF-8") from None


def read_gguf_header(file: Readable, size: int, where: str, limit: int = MAX_HEADER) -> GgufHeader:
    """Read and check a header.

    Args:
        file: At its beginning.
        size: Of the whole file in bytes.
        where: What error messages call it.
        limit: Longest header that is read.

    Raises:
        CheckpointError: If it is not a sound GGUF file.
    """
    given = _Bytes(file, size, where, limit)
    if size < 24 or given.take(4) != b"GGUF":
        raise CheckpointError(f"{where} is no GGUF file: it does not begin as one")
    version, count, settings = given.number("<I"), given.number("<Q"), given.number("<Q")
    if version not in (2, 3):
        raise CheckpointError(f"{where} is GGUF of version {version}; 2 and 3 are read")
    if count > MAX_TENSORS or settings > MAX_SETTINGS:
        raise CheckpointError(f"{where} says {count} tensors and {settings} settings, too many")
    found = _settings(given, settings, where)
    alignment = found.get("general.alignment", 32)
    if (
        type(alignment) is not int
        or not 1 <= alignment <= _LARGEST_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise CheckpointError(f"{where} has the alignment {alignment!r:.40}, no power of 2")
    tensors: dict[str, GgufTensor] = {}
    for _ in range(count):
        name, tensor = _tensor(given, alignment, where)
        if name in tensors:
            raise CheckpointError(f"{where} has the tensor {name[:80]!r} twice")
        tensors[name] = tensor
    start = -(-given.read // alignment) * alignment
    ordered = dict(sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)))
    at = 0
    for name, tensor in ordered.items():
        if not at <= tensor.begin < at + alignment:  # nothing between two but what aligns them
            raise CheckpointError(f"{where}: {name[:80]!r} does not follow what is before it")
        at = tensor.end
    if not at <= size - start < at + alignment:
        raise CheckpointError(f"{where} has {size} bytes, and its tensors end at {start + at}")
    return GgufHeader(found, ordered, start)


def _settings(given: _Bytes, count: int, where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    strings, numbers = MAX_STRINGS, _NUMBERS
    for _ in range(count):
        name = given.text()
        if not name or name in found or not name.isprintable():
            raise CheckpointError(f"{where} has a setting {name!r:.80}, empty or said twice")
        kind = given.number("<I")
        if kind == _STRING:
            found[name] = given.text()
        elif kind in _SCALARS:
            found[name] = given.number(_SCALARS[kind])
            if isinstance(found[name], float) and not isfinite(found[name]):
                raise CheckpointError(f"{where}: {name!r:.80} is {found[name]}")
        elif kind == _LIST:
            inner, length = given.number("<I"), given.number("<Q")
            if inner == _STRING:
                strings -= length
                if strings < 0:
                    raise CheckpointError(f"{where} has more than {MAX_STRINGS} strings in lists")
                for _ in range(length):
                    given.skip(given.number("<Q"))
                found[name] = NOT_KEPT
            elif inner in _SCALARS:
                form = _SCALARS[inner]
                if length > numbers:
                    given.skip(length * struct.calcsize(form))
                    found[name] = NOT_KEPT
                else:
                    numbers -= length
                    found[name] = given.numbers(form, length)
            else:
                raise CheckpointError(f"{where}: {name!r:.80} is a list of type {inner}")
        else:
            raise CheckpointError(f"{where}: {name!r:.80} has the type {kind}, which is none")
    return found


def _tensor(given: _Bytes, alignment: int, where: str) -> tuple[str, GgufTensor]:
    name, axes = given.text(), given.number("<I")
    if not name or not name.isprintable() or not 1 <= axes <= MAX_AXES:
        raise CheckpointError(f"{where} has a tensor {name!r:.80} of {axes} axes")
    shape = tuple(given.number("<Q") for _ in range(axes))[::-1]
    kind, begin = given.number("<I"), given.number("<Q")
    if kind not in TYPES:
        raise CheckpointError(f"{where}: {name[:80]!r} has the type {kind}, which is not read")
    _, block, size = TYPES[kind]
    vector = axes == 1 and block > 1  # of which no row could be read alone; llama.cpp has none
    wrong = min(shape) < 1 or prod(shape) >= 2**62 or shape[-1] % block
    if wrong or vector or begin % alignment:
        raise CheckpointError(f"{where}: {name[:80]!r} has the shape {shape}, or stands, wrongly")
    return name, GgufTensor(kind, shape, begin, begin + prod(shape) // block * size)
