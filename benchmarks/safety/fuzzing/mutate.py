"""Mutators that know the formats: blind bytes never get past the length of a header.

Each takes an input, a `Random` and the engine's own mutator of bytes, and gives the next input.
Some of what they make is put right again afterwards, so that the checks behind the first are met.
"""

import io
import json
import math
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.safety.hostile_files.material import Json, join, split

Bytes = Callable[[bytes], bytes]
Mutator = Callable[[bytes, Random, Bytes], bytes]

_NUMBERS = [0, 1, -1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64]
_NUMBERS += [10**18, 10**40, -(2**63), 0.0, -0.0, 0.5, 1e-320, 1e300, -1e300]
_WORDS = [
    "",
    "a",
    "0",
    "-1",
    "1e9",
    "\0",
    "\x1b[2J",
    "\ud800",
    "..",
    "../x",
    "/etc/passwd",
    "x" * 300,
]
_WORDS += [
    "é",
    "\U0001f600",
    "best",
    "nan",
    "null",
    "a.safetensors",
    "memory://a",
    "file:///a",
    "::",
]
_DTYPES = ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "F8_E4M3", "C64"]
_WIDTH = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}


# ------------------------------------------------------------------------------------- JSON


def scalar(rng: Random) -> Json:
    return rng.choice([rng.choice(_NUMBERS), rng.choice(_WORDS), None, True, False, [], {}])


def nodes(value: Json) -> list[tuple[Any, Any]]:
    """Every place in a JSON value, as a container and a key."""
    found, waiting = list[tuple[Any, Any]](), [value]
    while waiting and len(found) < 500:
        holder = waiting.pop()
        for key in list(_keys(holder))[:200]:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                waiting.append(holder[key])
    return found


def change_json(value: Json, rng: Random) -> Json:
    """Some places of a JSON value are other ones; in place where there is a container."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        places = nodes(value) if isinstance(value, dict | list) else []
        if not places or rng.random() < 0.01:
            value = scalar(rng)
            continue
        holder, key = rng.choice(places)
        _change_place(holder, key, rng, places)
    return value


def _change_place(holder: Any, key: Any, rng: Random, places: list[tuple[Any, Any]]) -> None:
    old, kind = holder[key], rng.randrange(9)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        other = rng.choice([k for _, k in places])
        holder[
            rng.choice([rng.choice(_WORDS), f"{key}.", other if isinstance(other, str) else "0"])
        ] = holder.pop(key)
    elif kind == 2 and type(old) in (int, float):
        near = [old + 1, old - 1, -old, old * 2, old * 1024, float(old) if abs(old) < 2**60 else 0]
        holder[key] = rng.choice(near)
    elif kind == 3 and isinstance(old, str):
        at = rng.randrange(len(old) + 1)
        holder[key] = rng.choice([old[:at], old + old, old[:at] + rng.choice(_WORDS) + old[at:]])
    elif kind == 4 and isinstance(old, list):
        holder[key] = rng.choice([old * 2, old[1:], old[::-1], [*old, scalar(rng)], [old]])
    elif kind == 5:
        there, name = rng.choice(places)
        holder[key] = _copy(there[name]) if name in _keys(there) else scalar(rng)
    elif kind == 6:
        for _ in range(rng.choice([1, 3, 40, 1200])):
            old = [old] if rng.random() < 0.5 else {"a": old}
        holder[key] = old
    else:
        holder[key] = scalar(rng)


def _copy(value: Json) -> Json:
    try:
        return json.loads(json.dumps(value))
    except (ValueError, RecursionError):
        return None


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def dump(value: Json, rng: Random) -> bytes:
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.8)
    except (RecursionError, ValueError):
        return b"[" * 5000
    return text.encode(errors="surrogatepass")


def json_text(data: bytes, rng: Random, mutate: Bytes) -> bytes:
    """JSON as JSON, or now and then as bytes."""
    try:
        value = json.loads(data) if rng.random() < 0.85 else None
    except (ValueError, RecursionError):
        value = None
    return mutate(data) if value is None else dump(change_json(value, rng), rng)


# ------------------------------------------------------------------------------- safetensors


def place(header: dict[str, Json], data: bytes, rng: Random) -> bytes:
    """Give each tensor offsets that fit its shape, and data that fit the offsets."""
    at = 0
    for name, entry in header.items():
        if name == "__metadata__" or not isinstance(entry, dict):
            continue
        shape = entry.get("shape")
        counts = shape if isinstance(shape, list) else []
        if not all(type(n) is int and 0 <= n < 2**12 for n in counts):
            continue
        dtype = entry.get("dtype")
        end = at + math.prod(counts) * _WIDTH.get(dtype if isinstance(dtype, str) else "", 1)
        if end > 2**16:
            continue
        entry["data_offsets"], at = [at, end], end
    if len(data) >= at:
        return data[:at]
    return (
        data
        + (b"\0" if rng.random() < 0.5 or not data else data * (at // len(data))).ljust(
            at - len(data), b"\0"
        )[: at - len(data)]
    )


def _change_header(header: dict[str, Json], rng: Random) -> None:
    names = [name for name in header if name != "__metadata__"]
    metadata = header.get("__metadata__")
    kind = rng.randrange(8)
    if kind == 0 or not names:
        change_json(header, rng)
        return
    entry = header[rng.choice(names)]
    if kind == 1 and isinstance(metadata, dict) and metadata:
        key = rng.choice(list(metadata))
        old = metadata[key] if isinstance(metadata[key], str) else ""
        try:  # JSON in JSON: a zoo's net, a model's config
            metadata[key] = dump(change_json(json.loads(old), rng), rng).decode(errors="replace")
        except (ValueError, RecursionError):
            metadata[key] = rng.choice([*_WORDS, old + old, old[1:]])
    elif kind == 2:
        first, second = rng.choice(names), rng.choice(names)
        header[first], header[second] = header[second], header[first]
    elif kind == 3:
        old = rng.choice(names)
        header[old.replace("0", "2") if rng.random() < 0.5 else rng.choice(_WORDS)] = header.pop(
            old
        )
    elif kind == 4:
        del header[rng.choice(names)]
    elif kind == 5 and isinstance(entry, dict):
        entry["dtype"] = rng.choice(_DTYPES)
    elif kind == 6 and isinstance(entry, dict) and isinstance(entry.get("shape"), list):
        shape = entry["shape"]
        sizes = [n for n in shape if isinstance(n, int)]
        choices = [shape[::-1], [*shape, 1], shape[1:], [math.prod(sizes)], [0, *shape[1:]], []]
        choices += [[n + 1 if isinstance(n, int) else n for n in shape], [rng.choice(_NUMBERS)]]
        entry["shape"] = rng.choice(choices)
    elif isinstance(entry, dict):
        change_json(entry, rng)


def safetensors(data: bytes, rng: Random, mutate: Bytes) -> bytes:
    """Header as JSON, and data; two of three times the places are put right again."""
    try:
        header, body = split(data)
        if not isinstance(header, dict):
            raise ValueError
    except (ValueError, struct.error, RecursionError):
        return mutate(data)
    how = rng.random()
    if how < 0.1:
        return mutate(data)
    if how < 0.25:
        return join(dump(header, rng), values(body, rng, mutate))
    _change_header(header, rng)
    if how < 0.75:
        body = place(header, body, rng)
    return join(dump(header, rng), body)


def values(body: bytes, rng: Random, mutate: Bytes) -> bytes:
    """Numbers that hurt: NaN, infinity, huge, tiny, all the same."""
    special = [b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\xff\xff\x7f\x7f", b"\1\0\0\0", b"\0\0\0\0"]
    one = rng.choice(special)
    if rng.random() < 0.2 or len(body) < 8:
        return mutate(body)
    first = rng.randrange(len(body) // 4) * 4
    count = rng.choice([1, 1, 8, 64, (len(body) - first) // 4])
    return (body[:first] + one * count + body[first + 4 * count :])[: len(body)]


# --------------------------------------------------------------------------------------- text


def lines(data: bytes, rng: Random, mutate: Bytes) -> bytes:
    """Lines and cells of text: CSV, JSON lines, TOML, lists of paths."""
    if rng.random() < 0.3:
        return mutate(data)
    rows = data.split(b"\n")
    at = rng.randrange(len(rows))
    kind = rng.randrange(7)
    if kind == 0:
        rows.insert(at, rng.choice(rows))
    elif kind == 1:
        del rows[at]
    elif kind == 2 and rows[at].startswith((b"{", b"[")):
        rows[at] = json_text(rows[at], rng, mutate)
    elif kind == 3:
        separator = rng.choice([b",", b" = ", b" "])
        cells = rows[at].split(separator)
        cells[rng.randrange(len(cells))] = str(scalar(rng)).encode(errors="surrogatepass")
        rows[at] = separator.join(cells)
    elif kind == 4:
        rows[at] = mutate(rows[at])
    elif kind == 5:
        rows[at] = rows[at] + rng.choice([b'"', b"'", b",", b"\r", b"\0", b"\xff", b"]]", b"[x]"])
    else:
        rows[at] = dump(scalar(rng), rng)
    return b"\n".join(rows)


# ------------------------------------------------------------------------------------ Parquet


_OPTIONS: list[dict[str, Any]] = [
    {},
    {"compression": "zstd"},
    {"compression": "gzip"},
    {"use_dictionary": False, "compression": "none"},
    {"row_group_size": 1},
    {"data_page_version": "2.0"},
    {"store_schema": False},
]


def parquet(data: bytes, rng: Random, mutate: Bytes) -> bytes:
    """A table with other columns, types or metadata, written anew; or bytes of the footer."""
    try:
        table = None
        if rng.random() < 0.6:  # without threads, which would still hold bytes at the end
            with pq.ParquetFile(pa.BufferReader(data), pre_buffer=False) as file:
                table = file.read(use_threads=False)
        if table is not None and len(table) < 10_000:
            changed = _change_table(table, rng)
            sink = io.BytesIO()
            pq.write_table(changed, sink, **rng.choice(_OPTIONS))
            return sink.getvalue()
    except Exception:  # what the mutations before have broken, or what cannot be written
        pass
    if len(data) > 12 and rng.random() < 0.7:
        length = min(int.from_bytes(data[-8:-4], "little"), len(data) - 8)
        footer = mutate(data[-8 - length : -8])
        return data[: -8 - length] + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    return mutate(data)


def _change_table(table: pa.Table, rng: Random) -> pa.Table:
    kind, at = rng.randrange(7), rng.randrange(max(1, table.num_columns))
    name = table.column_names[at]
    if kind == 0:
        return table.drop_columns([name])
    if kind == 1:
        return table.rename_columns(rng.sample(table.column_names, table.num_columns))
    if kind == 2:
        types = [pa.string(), pa.int64(), pa.binary(), pa.float32(), pa.large_string(), pa.null()]
        types += [
            pa.list_(pa.string()),
            pa.struct({"a": pa.int8()}),
            pa.dictionary(pa.int8(), pa.string()),
        ]
        return table.set_column(at, name, pa.nulls(len(table), rng.choice(types)))
    if kind == 3:
        metadata = dict(table.schema.metadata or {})
        key = rng.choice([*metadata, b"a"])
        metadata[key] = json_text(metadata.get(key, b"{}"), rng, lambda text: text[::-1])
        return table.replace_schema_metadata(metadata)
    if kind == 4:
        rows = [rng.randrange(len(table)) for _ in range(rng.randrange(4))] if len(table) else []
        return table.take(pa.array(rows, pa.int64()))
    column = table[name].to_pylist()
    if column and kind == 5:
        column[rng.randrange(len(column))] = rng.choice([None, scalar(rng)])
        return table.set_column(at, name, pa.array(column, table.schema.field(at).type))
    return table.append_column(rng.choice(table.column_names), table[name])


# ------------------------------------------------------------------------------ several files


def pack(parts: Sequence[bytes]) -> bytes:
    """Several files as one input."""
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def unpack(data: bytes, count: int) -> list[bytes]:
    """So many files, whatever the input is; the last takes the rest."""
    parts = []
    for _ in range(count - 1):
        length = int.from_bytes(data[:4], "little")
        parts.append(data[4 : 4 + length])
        data = data[4 + length :]
    return [*parts, data[4:]]


class Each:
    """One mutator for each file; mostly one file changes."""

    def __init__(self, *mutators: Mutator) -> None:
        self.mutators = mutators

    def __call__(self, data: bytes, rng: Random, mutate: Bytes) -> bytes:
        parts = unpack(data, len(self.mutators))
        for at in rng.sample(range(len(parts)), rng.choice([1, 1, 1, min(2, len(parts))])):
            parts[at] = self.mutators[at](parts[at], rng, mutate)
        return pack(parts)


def plain(data: bytes, _: Random, mutate: Bytes) -> bytes:
    return mutate(data)
