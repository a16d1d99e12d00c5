"""What is legal and as large as a file may say without being so."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.safety.hostile_files.material import (
    INDEX,
    LIMIT,
    SINGLE,
    Base,
    Json,
    Made,
    folder,
    join,
    make_base,
    pick,
    split,
)

TERABYTES_IN_ROWS = 2**40 // 8


def large(i: int, rng: Random, base: Base) -> Made:
    kinds = [many_tensors, terabytes, many_blocks, many_shards, long_headers]
    return pick(i, kinds)(rng, base)


def many_tensors(_: Random, base: Base) -> Made:
    """As many as the header holds."""
    return folder(base, join(empty_tensors(LIMIT // 60), b""), "error")


def terabytes(_: Random, base: Base) -> Made:
    """None of them on the disk."""
    header, _data = split(base.raw)
    writer = next(w for w in base.family.writers if w.axes in ("t x", "p q x"))
    header[base.family.prefixes[0] + writer.name]["shape"][-2] = TERABYTES_IN_ROWS
    size = place({name: entry for name, entry in header.items() if name != "__metadata__"}, 4)
    raw = join(header, b"")
    return folder(
        base, raw, "error", after=lambda home: os.truncate(home / SINGLE, len(raw) + size)
    )


def many_blocks(rng: Random, base: Base) -> Made:
    """So many that the header is nearly as long as is read, each as small as can be."""
    small = make_base(base.family, x=1, z=2, h=1, g=1, m=1, k=2, v=2, a=2, t=1)
    prefix = base.family.prefixes[0] + base.family.block
    one, two = prefix.format(0), prefix.format(1)
    inside = {n: list(t.shape) for n, t in small.tensors.items() if n.startswith(one)}
    shapes = {n: list(t.shape) for n, t in small.tensors.items() if not n.startswith(two)}
    for number in range(1, rng.choice([500, 1000])):
        here = prefix.format(number)
        shapes |= {name.replace(one, here): shape for name, shape in inside.items()}
    table: dict[str, Json] = {n: {"dtype": "F16", "shape": shape} for n, shape in shapes.items()}
    size = place(table, 2)
    one_head = replace(base, config=base.config | {base.heads_key: 1})
    if one_head.metadata:
        table = {"__metadata__": one_head.metadata, **table}
    text = json.dumps(table, separators=(",", ":")).encode()
    return folder(one_head, join(text, b"\0" * size), "any")


def many_shards(_: Random, __: Base) -> Made:
    """All with the same long header."""
    raw = join(b"{" + b" " * (LIMIT // 2) + b"}", b"")
    weight_map = {str(n): f"{n}.safetensors" for n in range(900)}
    files = {"0.safetensors": raw, INDEX: json.dumps({"weight_map": weight_map}).encode()}

    def links(home: Path) -> None:
        for n in range(1, 900):
            (home / f"{n}.safetensors").symlink_to("0.safetensors")

    return Made(files, "error", after=links)


def long_headers(_: Random, __: Base) -> Made:
    """Four of different tensors."""
    shards = {f"{n}.safetensors": join(empty_tensors(LIMIT // 62, n), b"") for n in "abcd"}
    weight_map = dict(zip("abcd", shards, strict=True))
    return Made({**shards, INDEX: json.dumps({"weight_map": weight_map}).encode()}, "error")


def empty_tensors(count: int, before: str = "") -> bytes:
    """A header, not one of whose tensors has a number."""
    entry = b'"%s%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return b"{" + b",".join(entry % (before.encode(), n) for n in range(count)) + b"}"


def place(table: dict[str, Json], width: int) -> int:
    """Give each entry its offsets; the bytes of all."""
    at = 0
    for entry in table.values():
        end = at + width * math.prod(entry["shape"])
        entry["data_offsets"], at = [at, end], end
    return at
