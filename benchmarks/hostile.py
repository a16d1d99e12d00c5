"""Files from outside, made to hurt: each must end in one clear error, quickly, in little memory.

    python benchmarks/hostile.py
    python benchmarks/hostile.py --quick --json

Thousands of damaged, lying and malicious checkpoints are opened in this process, and where one
opens after all, every block, writer and head is read. Allowed are a `CheckpointError` with a
short message, or a sound result where the file is in fact legal; each in less than 2 s and with
less than 300 MB above what the process has after its imports, under a limit of its address space.
Nothing in a file may run: the pickles among them would make a marker file. Some cases go
through `tnfn inspect` as well, which must say one line and show no traceback.
"""

import argparse
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from transformer_nfn.checkpoints import FAMILIES, Checkpoint, CheckpointError, Family
from transformer_nfn.checkpoints.header import MAX_HEADER

SECONDS = 2.0
MEGABYTES = 300
CHARACTERS = 600
ADDRESS_SPACE = 1.5 * 2**30
LIMIT = MAX_HEADER  # and of config.json
CLEAR = Path("/proc/self/clear_refs")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

Expected = Literal["error", "sound", "any"]
Json = Any


class TooSlow(BaseException):
    """Not an Exception, so that nothing on the way takes it for one of its own."""


# ----------------------------------------------------------------------------- sound material


@dataclass(frozen=True)
class Base:
    """A small sound checkpoint. A zoo's net has its config in the file's metadata."""

    family: Family
    tensors: dict[str, Tensor]
    config: dict[str, Json]

    @property
    def is_zoo(self) -> bool:
        return self.family.norms is None

    @property
    def raw(self) -> bytes:
        return save(self.tensors, {"net": json.dumps(self.config)} if self.is_zoo else None)

    @property
    def matrices(self) -> list[str]:
        """Names of the blocks' weights, which must all be there."""
        prefix = self.family.prefixes[0] + self.family.block
        return [prefix.format(i) + m.weight for i in (0, 1) for m in self.family.matrices]

    @property
    def heads_key(self) -> str:
        return next(key for key in ("n_head", "num_attention_heads", "heads") if key in self.config)


def stored(sizes: list[int], axes: list[str], joined: bool) -> list[int]:
    if not joined:
        return sizes
    first = axes[0] == "x"
    return [sizes[0], math.prod(sizes[1:])] if first else [math.prod(sizes[:-1]), sizes[-1]]


def make_base(family: Family, **changes: int) -> Base:
    """D=8, 2 heads of 4 (Llama: in 1 group), 6 hidden neurons, 2 blocks, 5 tokens."""
    sizes = {"x": 8, "z": 9, "h": 2, "g": 1, "m": 2, "k": 4, "v": 4, "a": 6, "t": 5}
    sizes |= {"p": 1, "q": 1, "r": 1} | changes
    zoo = family.norms is None
    shapes: dict[str, list[int]] = {}
    prefix = family.prefixes[0]
    for block in range(2):
        here = prefix + family.block.format(block)
        for matrix in family.matrices:
            axes = matrix.axes.split()
            numbers = [len(matrix.tensors) if a == "f" else sizes[a] for a in axes]
            shapes[here + matrix.weight] = stored(numbers, axes, not zoo)
            if matrix.bias:
                shapes[here + matrix.bias] = [
                    math.prod(n for a, n in zip(axes, numbers, strict=True) if a != "x")
                    if not matrix.bias_tensor or matrix.bias_tensor in ("bA",)
                    else sizes["x"]
                ]
        for norm in family.norms or ():
            shapes |= {f"{here}{norm}.{part}": [sizes["x"]] for part in ("weight", "bias")}
    for norm in (family.first_norm, family.last_norm):
        if norm:
            shapes |= {f"{prefix}{norm}.{part}": [sizes["x"]] for part in ("weight", "bias")}
    for writer in family.writers:
        shapes[prefix + writer.name] = [sizes[a] for a in writer.axes.split()]
    if zoo:
        shapes |= {"classifier.weight1": [sizes["x"], 3], "classifier.bias1": [3]}
        shapes |= {"classifier.weight2": [3, 2], "classifier.bias2": [2]}
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return Base(family, tensors, make_config(family))


def make_config(family: Family) -> dict[str, Json]:
    if family.norms is None:
        return {"heads": 2, "tokens": 4}
    kind = {"model_type": family.model_types[0]}
    if family.name == "gpt2":
        return kind | {"n_head": 2, "architectures": ["GPT2LMHeadModel"]}
    config: dict[str, Json] = kind | {"num_attention_heads": 2, "hidden_act": "gelu"}
    if family.name == "llama":
        rope = {"rope_theta": 10000.0, "rope_type": "default"}
        config |= {"num_key_value_heads": 1, "rope_parameters": rope, "tie_word_embeddings": True}
    return config


def split(raw: bytes) -> tuple[dict[str, Json], bytes]:
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(header: dict[str, Json] | bytes, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


# ----------------------------------------------------------------------------- hostile material


@dataclass(frozen=True)
class Made:
    """A folder's files, what must come of it, what is opened, and links or devices to add."""

    files: dict[str, bytes]
    expected: Expected
    opened: str = ""
    after: Callable[[Path], None] | None = None


def folder(base: Base, raw: bytes, expected: Expected, **more: Any) -> Made:
    config = {} if base.is_zoo else {"config.json": json.dumps(base.config).encode()}
    return Made({SINGLE: raw, **config}, expected, **more)


def changed(base: Base, name: str, key: str, value: Json, expected: Expected = "error") -> Made:
    """One field of one tensor's entry is another."""
    header, data = split(base.raw)
    header[name][key] = value
    return folder(base, join(header, data), expected)


def pick(i: int, choices: list[Any]) -> Any:
    return choices[i % len(choices)]


def truncated(i: int, rng: random.Random, base: Base) -> Made:
    raw = base.raw
    (length,) = struct.unpack("<Q", raw[:8])
    kind = i % 6
    if kind == 0:
        cut = rng.randrange(9)
    elif kind == 1:
        cut = 8 + rng.randrange(length)
    elif kind == 2:
        cut = 8 + length + pick(i // 6, [-2, -1, 0, 1, 2])
    elif kind == 3:
        cut = rng.randrange(8 + length, len(raw))
    elif kind == 4:
        cut = len(raw) - 1 - rng.randrange(8)
    else:
        return folder(base, raw + rng.randbytes(1 + rng.randrange(100)), "error")
    return folder(base, raw[:cut], "error")


def header_length(i: int, rng: random.Random, base: Base) -> Made:
    raw = base.raw
    (length,) = struct.unpack("<Q", raw[:8])
    fixed = [0, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8]
    fixed += [len(raw), len(raw) - 8, len(raw) - 7, LIMIT, LIMIT + 1, 100_000_000]
    fixed += [length + d for d in (-64, -8, -2, -1, 1, 2, 8, 64)]
    value = pick(i, [*fixed, rng.randrange(2**64), rng.randrange(len(raw) * 2)])
    expected: Expected = "sound" if value == length else "error"
    return folder(base, struct.pack("<Q", value) + raw[8:], expected)


def offsets(i: int, rng: random.Random, base: Base) -> Made:
    header, data = split(base.raw)
    names = [name for name in header if name != "__metadata__"]
    name, other = rng.sample(names, 2)
    begin, end = header[name]["data_offsets"]
    values: list[Json] = [header[other]["data_offsets"], [end, begin], [-begin - 1, -end]]
    values += [[begin - end, 0], [begin + 1, end + 1], [begin, end + 1]]
    values += [[begin + 2**63, end + 2**63], [begin + 2**64, end + 2**64], [0, 2**63 - 1]]
    values += [[10**50, 10**50 + end - begin], [float(begin), float(end)], [begin, end + 0.5]]
    values += [[False, True], [str(begin), str(end)], [None, None], [begin], [begin, end, end]]
    values += [[[begin, end]], {"begin": begin, "end": end}, f"{begin},{end}", begin, None, True]
    values += [[], [1e400, 1e400], list(range(50_000))]
    kind = i % (len(values) + 4)
    if kind < len(values):
        legal = json.dumps(values[kind]) == json.dumps([begin, end])
        return changed(base, name, "data_offsets", values[kind], "sound" if legal else "error")
    if kind == len(values):  # a hole
        gap = 8 * (1 + rng.randrange(4))
        for entry in (header[n] for n in names):
            if entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [place + gap for place in entry["data_offsets"]]
        return folder(base, join(header, data[:end] + b"\0" * gap + data[end:]), "error")
    if kind == len(values) + 1:  # all at the same place
        for n in names:
            size = header[n]["data_offsets"][1] - header[n]["data_offsets"][0]
            header[n]["data_offsets"] = [0, size]
        return folder(base, join(header, data), "error")
    if kind == len(values) + 2:  # legal: two tensors of a size change places
        same = [n for n in names if header[n]["shape"] == header[name]["shape"]]
        one, two = rng.choice(same), rng.choice(same)
        places = header[one]["data_offsets"], header[two]["data_offsets"]
        header[two]["data_offsets"], header[one]["data_offsets"] = places
        return folder(base, join(header, data), "sound")
    del header[name]["data_offsets"]
    return folder(base, join(header, data), "error")


def dtypes(i: int, rng: random.Random, base: Base) -> Made:
    names = ["F64", "F16", "BF16", "I64", "I16", "I8", "U8", "BOOL", "I32", "U32", "F8_E4M3"]
    names += ["F4", "f32", "float32", "torch.float32", "", " F32", "F32\0", "O", "C64"]
    names += ["F32" * 9999]
    values = [*names, None, 32, 3.5, True, [], ["F32"], {}, {"F32": 1}, "\x1b[2J", "\ud800"]
    return changed(base, rng.choice(base.matrices), "dtype", pick(i, values))


def shapes(i: int, rng: random.Random, base: Base) -> Made:
    name = rng.choice(base.matrices)
    shape = list(base.tensors[name].shape)
    count = math.prod(shape)
    values: list[Json] = [[-n for n in shape], [-1, count], [0, *shape], [*shape, 0], []]
    values += [[count + 1], [2**63], [2**64 + shape[0], *shape[1:]], [2**32, 2**32, *shape]]
    values += [[2**62, 4, count], [2**63 - 1] * 8, [1] * 7 + shape, [1] * 100_000 + shape]
    values += [[1, *shape], [*shape, 1], [count], [float(n) for n in shape]]
    values += [[str(n) for n in shape], [None] * len(shape), [True, *shape], [shape], {"0": count}]
    values += [str(shape), count, None, [count, 10**60], [10**99]]
    kind = i % (len(values) + 5)
    if kind < len(values):
        return changed(base, name, "shape", values[kind])
    if kind == len(values):
        square = shape[::-1] == shape
        return changed(base, name, "shape", shape[::-1], "sound" if square else "error")
    if kind == len(values) + 1:  # all of its own size, but not those of the others
        label = rng.choice("xhkvagmt")
        other = make_base(base.family, **{label: rng.choice([0, 1, 3, 5, 16])})
        return folder(base, other.raw, "any")
    if kind == len(values) + 2:  # no numbers at all
        other = make_base(base.family, **dict.fromkeys("xzhgmkvat", 0))
        return folder(base, other.raw, "error")
    if kind == len(values) + 3:  # empty, its axes unbounded
        header, data = split(base.raw)
        wide = rng.choice([[0, 2**62, 2**62], [2**62, 0], [2**62, 2**62, 0]])
        entry = {"dtype": "F32", "shape": wide, "data_offsets": [0, 0]}
        return folder(base, join({**header, "unknown": entry}, data), "any")
    tensors = dict(base.tensors)
    tensors[name] = torch.zeros([n + rng.randrange(1, 3) for n in shape])
    return folder(base, Base(base.family, tensors, base.config).raw, "error")


def nested(open_: str, close: str, depth: int) -> bytes:
    return (open_ * depth + close * depth).encode()


def crowded(item: bytes, size: int) -> bytes:
    return b",".join([item] * (size // (len(item) + 1)))


def json_texts(rng: random.Random) -> list[Callable[[], bytes]]:
    """Values that are hostile wherever JSON is read; made when needed, since some are long."""
    room = LIMIT - 10_000  # a sound header beside it
    short = [b"", b"nul", b"[", b"{", b'"', b"\xff\xfe", b'"\xff"', b"NaN", b"-Infinity", b"1e999"]
    short += [b"1" * 4000, b"-" + b"9" * 5000, b"1" * 300_000, b"0." + b"3" * 100_000, b"01", b"1,"]
    short += [b'"' + b"x" * 1_000_000 + b'"', b'"\\ud800"', b'"\\u0000"', b'"\\x"', b"'a'", b"//"]
    short += [b'{"a":1,"a":1}', b'[{"b":[],"b":[]}]', b"[1,]", b"{,}", b"\0", b"true", b"[]", b"{}"]
    made: list[Callable[[], bytes]] = [lambda text=text: text for text in short]
    for depth in (16, 33, 100, 500, *range(900, 1001, 4), 5000, 100_000, 1_000_000):
        made.append(lambda depth=depth: nested("[", "]", depth))
        made.append(lambda depth=depth: nested('{"":', "}", depth).replace(b":}", b":0}"))
    items = [b"[]", b"{}", b'{"":0}', b'{"":{}}', b"0", b"1.5", b'""', b"null", b"[[]]"]
    items += [b'"\\u1234"']
    for item in [*items, nested("[", "]", 20), nested("[", "]", 800)]:
        size = rng.choice([room, room // 2, room // 20])
        made.append(lambda item=item, size=size: b"[" + crowded(item, size) + b"]")
    made.append(lambda: b"{%s}" % b",".join(b'"%d":{}' % n for n in range(room // 12)))
    made.append(lambda: b" " * room + b"0")
    return made


def header_json(i: int, rng: random.Random, base: Base) -> Made:
    """Hostile JSON as a tensor's entry, its shape, dtype, metadata, a key, or the whole header."""
    texts = json_texts(rng)
    text = texts[i % len(texts)]()
    header, data = split(base.raw)
    plain = json.dumps(header).encode()
    place = (i // len(texts)) % 5
    if place == 0:
        whole = b'{"x":' + text + b"," + plain[1:]
    elif place == 1:
        whole = b'{"x":{"dtype":"F32","data_offsets":[0,0],"shape":' + text + b"}," + plain[1:]
    elif place == 2:
        whole = b'{"x":{"shape":[0],"data_offsets":[0,0],"dtype":' + text + b"}," + plain[1:]
    elif place == 3:
        kept = {n: e for n, e in header.items() if n != "__metadata__"}
        whole = b'{"__metadata__":' + text + b"," + json.dumps(kept).encode()[1:]
    else:
        whole = text
    legal = place == 3 and text == b"{}" and not base.is_zoo
    return folder(base, join(whole, data), "sound" if legal else "error")


def header_text(i: int, rng: random.Random, base: Base) -> Made:
    """The header as a whole: encodings, spaces, repeated keys, names."""
    header, data = split(base.raw)
    plain = json.dumps(header).encode()
    name = rng.choice(base.matrices)
    entry = json.dumps({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}).encode()
    strange = ["\0", "a\0b", "../../etc/passwd", "/etc/passwd", "\x1b[31m", "\r\n", "\u202e", ""]
    strange += [" "]
    strange += [
        "x" * 100_000,
        "x" * (LIMIT // 2),
        "\U0001f600" * 50,
        "__class__",
        "$(touch x)",
        "é" * 90,
    ]
    kind = i % (13 + len(strange))
    if kind >= 13:
        odd = strange[kind - 13]
        expected: Expected = "sound" if odd.isprintable() else "error"
        whole = b"{" + json.dumps(odd).encode() + b":" + entry + b"," + plain[1:]
        return folder(base, join(whole, data), expected)
    texts: list[tuple[bytes, Expected]] = [
        (b" " + plain, "error"),
        (b"\xef\xbb\xbf" + plain, "error"),
        (plain + b" " * rng.randrange(100), "sound"),
        (plain + b" " * (LIMIT // 2), "sound"),
        (
            plain.ljust(0x10280 + 256 * rng.randrange(4)),
            "sound",
        ),  # this length starts like a pickle
        (plain + b"\0" * 8, "error"),
        (plain + b"{}", "error"),
        (plain.decode().encode("utf-16-le"), "error"),
        (plain.decode().encode("utf-32-le"), "error"),
        (plain[:-1] + b"," + json.dumps({name: header[name]}).encode()[1:], "error"),
        (plain.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1), "error"),
        (plain.replace(b'"dtype"', b'"more":1,"dtype"', 1), "error"),
        (b"[" + plain + b"]", "error"),
    ]
    return folder(base, join(texts[kind][0], data), texts[kind][1])


def metadata(i: int, rng: random.Random, base: Base) -> Made:
    header, data = split(base.raw)
    values: list[Json] = [None, 1, [], "text", {"a": 1}, {"a": None}, {"a": {}}, {"a": ["b"]}, True]
    texts = ["", "null", "[]", "{}", "{", "\ud800", '{"heads": 2}', '{"heads": "2", "tokens": 4}']
    texts += ['{"heads": -1, "tokens": 4}', '{"heads": 1e3, "tokens": 4}', '{"heads": NaN}', "\0"]
    texts += ['{"heads": 2, "heads": 2, "tokens": 4}', "[" * 100_000, '{"a":' * 5000, "é" * 90_000]
    values += [{"net": text} for text in texts]
    value = pick(i, values)
    fine = isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
    header["__metadata__"] = value
    return folder(base, join(header, data), "sound" if fine and not base.is_zoo else "error")


def flips(i: int, rng: random.Random, base: Base) -> Made:
    """A few bytes of length and header are others, more, or fewer."""
    raw = bytearray(base.raw)
    (length,) = struct.unpack("<Q", raw[:8])
    for _ in range(pick(i, [1, 1, 1, 2, 3, 8, 50])):
        at = rng.randrange(8 + length) if i % 3 else rng.randrange(8, 8 + length)
        kind = rng.randrange(6)
        if kind < 2:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            raw[at] = rng.randrange(256)
        elif kind == 3:
            raw[at] = rng.choice(b'0123456789-{}[]",:.eE \\')
        else:  # digits, where lies about sizes are
            digits = [n for n in range(8, 8 + length) if chr(raw[n]).isdigit()]
            raw[rng.choice(digits or [at])] = rng.choice(b"0123456789-.e")
    if i % 11 == 0:
        del raw[8 + rng.randrange(length)]
    return folder(base, bytes(raw), "any")


def noise(i: int, rng: random.Random, base: Base) -> Made:
    body = rng.randbytes(rng.choice([0, 1, 7, 8, 9, 100, 1000, 50_000]))
    if i % 3 == 1:  # with a length that fits
        body = struct.pack("<Q", rng.randrange(len(body) + 1)) + body
    if i % 3 == 2:
        body = struct.pack("<Q", len(body) + 1) + b"{" + body
    return folder(base, body, "error")


def payload(protocol: int, marker: Path) -> bytes:
    """A pickle that makes the marker file when it is read."""
    start = b"" if protocol < 2 else bytes([0x80, protocol])
    return start + b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode()


def other_formats(marker: Path) -> Callable[[int, random.Random, Base], Made]:
    def archive(protocol: int) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("archive/data.pkl", payload(protocol, marker))
            file.writestr("archive/version", "3\n")
        return buffer.getvalue()

    def make(i: int, rng: random.Random, base: Base) -> Made:
        more = rng.randbytes(rng.randrange(200))
        lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:%064x\nsize 99\n"
        contents: list[bytes] = [
            *(payload(protocol, marker) + more for protocol in range(6)),
            *(archive(protocol) + more for protocol in range(6)),
            b"GGUF" + struct.pack("<IQQ", 3, 2**63, 2**63) + more,
            b"\x89HDF\r\n\x1a\n" + more,
            lfs % rng.getrandbits(256),
            b"",
            b"#!/bin/sh\ntouch %s\n" % str(marker).encode(),
            b"\x93NUMPY\x01\x00v\x00" + more,
            b"\x1f\x8b\x08" + more,
            b"\x7fELF" + more,
            b"<html>404</html>" + more,
            b'{"error": "not found"}',
            json.dumps(base.config).encode(),
            # A payload behind a length that fits, and one in the place of the tensors.
            join(payload(pick(i, [0, 2, 4, 5]), marker), more),
            join(b"{}", payload(pick(i, [0, 2, 4, 5]), marker)),
        ]
        content = pick(i, contents)
        name = pick(
            i // len(contents), [SINGLE, "pytorch_model.bin", "x.pt", "x.ckpt", "x.pkl", "x"]
        )
        if name == SINGLE:
            return folder(base, content, "error")
        return Made({name: content, "config.json": b"{}"}, "error", opened=name)

    return make


def values(i: int, rng: random.Random, base: Base) -> Made:
    """NaN and infinities are numbers to a reader: the file opens and gives them back."""
    special = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 1e-45, -0.0])
    tensors = {
        name: torch.where(
            torch.rand(t.shape, generator=torch.Generator().manual_seed(i)) < 0.3,
            special[rng.randrange(6)],
            t,
        )
        for name, t in base.tensors.items()
    }
    dtype = pick(i, [torch.float32, torch.float16, torch.bfloat16, torch.float64])
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    return folder(base, Base(base.family, tensors, base.config).raw, "sound")


def tensors(i: int, rng: random.Random, base: Base) -> Made:
    """Tensors that are missing, renamed, of another family, or too many."""
    made = dict(base.tensors)
    kind = i % 6
    name = rng.choice(base.matrices if kind < 3 else list(made))
    if kind in (0, 3):
        del made[name]
    elif kind in (1, 4):
        made[name.replace("0", "7").replace("1", "9") + rng.choice(["", "x"])] = made.pop(name)
    elif kind == 2:
        made |= make_base(rng.choice(list(FAMILIES.values()))).tensors
    else:
        made = {n: t for n, t in made.items() if rng.random() < 0.8}
    return folder(base, Base(base.family, made, base.config).raw, "any")


def config_values(i: int, rng: random.Random, base: Base) -> Made:
    keys = ["model_type", "layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm", "tokens"]
    keys += [
        "architectures",
        "hidden_act",
        "activation_function",
        "tie_word_embeddings",
        "head_dim",
    ]
    keys += ["num_key_value_heads", "rope_parameters", "rope_scaling", "rope_theta", "image_size"]
    keys += ["sliding_window", "scale_attn_weights", "is_decoder", "position_embedding_type"]
    simple: list[Json] = [None, True, False, -1, 0, 3, 7, 10**18, 2**31, 0.5, -0.5, 1e308, "", "2"]
    simple += [[], [2], {}, {"a": 1}, "x" * 100_000, 10**90, [[[[]]]], ["x"] * 50_000, -0.0]
    texts = [json.dumps(value).encode() for value in simple]
    texts += [b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 400, b"9" * 5000, b'"\\ud800"']
    texts += [b'"\\u001b[2J"', b'{"rope_theta":' + b"9" * 90 + b"}", b'{"rope_theta":-1e999}']
    texts += [b"[" * d + b"]" * d for d in (30, 500, 900, 950, 980, 985, 990, 995, 100_000)]
    text = texts[i % len(texts)]
    key = base.heads_key if i % 2 else rng.choice(keys)
    rest = {n: v for n, v in base.config.items() if n != key}
    whole = json.dumps(rest).encode()[:-1] + b', "%s": %s}' % (key.encode(), text)
    # Heads are right as 2 only, and 8 columns have no other number of heads in the list.
    return config_text(base, whole, "error" if key == base.heads_key else "any")


def config_text(base: Base, text: bytes, expected: Expected) -> Made:
    if base.is_zoo:
        header, data = split(base.raw)
        header["__metadata__"] = {"net": text.decode("latin-1")}
        return folder(base, join(header, data), expected)
    return Made({SINGLE: base.raw, "config.json": text}, expected)


def config_files(i: int, rng: random.Random, base: Base) -> Made:
    texts = json_texts(rng)
    text = texts[i % len(texts)]()
    if (i // len(texts)) % 3 == 1 and text:
        text = b'{"model_type": ' + text + b"}"
    if (i // len(texts)) % 3 == 2:  # longer than what is read
        text = json.dumps(base.config).encode() + b" " * (LIMIT + rng.randrange(LIMIT))
    return config_text(base, text, "error")


def sharded(base: Base) -> dict[str, bytes]:
    """Two shards and their index."""
    names = list(base.tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    meta = {"net": json.dumps(base.config)} if base.is_zoo else None
    files = {file: save({n: base.tensors[n] for n in part}, meta) for file, part in halves.items()}
    weight_map = {n: file for file, part in halves.items() for n in part}
    files[INDEX] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    if not base.is_zoo:
        files["config.json"] = json.dumps(base.config).encode()
    return files


def index(i: int, rng: random.Random, base: Base) -> Made:
    files = sharded(base)
    weight_map: dict[str, Json] = json.loads(files[INDEX])["weight_map"]
    some = rng.choice(list(weight_map))
    paths: list[Json] = ["../b.safetensors", "/etc/passwd", "..", ".", "", "./b.safetensors"]
    paths += ["x/../b.safetensors", "C:\\b.safetensors", "..\\b", "b.safetensors\0", "\0", "\n"]
    paths += ["x" * 256, "x" * 100_000, "\ud800", "\udc80", "/dev/zero", "/proc/self/mem", "~"]
    paths += [INDEX]
    paths += ["missing.safetensors", "config.json", "\x1b[2J", "b.safetensors/", "//b.safetensors"]
    paths += [None, 1, True, [], {}, ["b.safetensors"], {"b.safetensors": 1}]
    kind = i % (len(paths) + 12)
    if kind < len(paths):
        weight_map[some] = paths[kind]
        whole: Json = {"weight_map": weight_map}
    elif kind == len(paths):
        whole = {"weight_map": {str(n): f"{n}.safetensors" for n in range(100_000)}}
    elif kind == len(paths) + 1:
        whole = {"weight_map": {str(n): f"{n}.safetensors" for n in range(4096)}}
    elif kind == len(paths) + 2:
        whole = {"weight_map": {}}
    elif kind == len(paths) + 3:
        whole = {"weight_map": rng.choice([None, [], "a.safetensors", 1, list(weight_map)])}
    elif kind == len(paths) + 4:  # a tensor in both
        files["a.safetensors"] = files["b.safetensors"]
        whole = {"weight_map": weight_map}
    elif kind == len(paths) + 5:  # the other shard
        weight_map[some] = "b.safetensors" if weight_map[some][0] == "a" else "a.safetensors"
        whole = {"weight_map": weight_map}
    elif kind == len(paths) + 6:  # a tensor that no shard has
        whole = {
            "weight_map": {**weight_map, "x" * rng.choice([1, 1000, 1_000_000]): "b.safetensors"}
        }
    elif kind == len(paths) + 7:  # one that the index lacks
        whole = {"weight_map": {n: f for n, f in weight_map.items() if n != some}}
    elif kind == len(paths) + 8:
        name = rng.choice(["a.safetensors", "b.safetensors"])
        files[name] = files[name][: rng.randrange(len(files[name]))]
        whole = {"weight_map": weight_map}
    elif kind == len(paths) + 9:
        whole = rng.choice([[], {}, None, "weight_map", 1])
    elif kind == len(paths) + 10:
        texts = json_texts(rng)
        files[INDEX] = b'{"weight_map":' + rng.choice(texts)() + b"}"
        return Made(files, "error")
    else:  # legal
        return Made(files, "sound", opened=pick(i, ["", INDEX]))
    files[INDEX] = json.dumps(whole).encode()
    return Made(files, "error", opened=pick(i, ["", INDEX]))


def link_to(name: str, target: str) -> Callable[[Path], None]:
    def link(home: Path) -> None:
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target)

    return link


def listening(home: Path, name: str) -> None:
    """A socket's name in a folder; its path may not be longer than some hundred characters."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(home / name))


def specials(i: int, rng: random.Random, base: Base) -> Made:
    """Links, folders, pipes, sockets and devices where files should be."""
    files = sharded(base) if i % 2 else folder(base, base.raw, "any").files
    places = [name for name in files if name != "config.json" or not base.is_zoo]
    name = rng.choice(places)
    outside = f"../outside-{name}"
    kinds: list[tuple[Expected, Callable[[Path], None]]] = [
        *(
            ("error", link_to(name, f"/dev/{d}"))
            for d in ("zero", "urandom", "full", "tty", "stdin")
        ),
        ("error", link_to(name, "/dev/null")),
        ("error", link_to(name, "/proc/self/mem")),
        ("error", link_to(name, "/proc/self/environ")),
        ("error", link_to(name, name)),
        ("error", link_to(name, f"./{name}/x")),
        ("error", link_to(name, "missing")),
        ("error", link_to(name, "/")),
        ("error", link_to(name, "/etc/passwd")),
        ("error", link_to(name, "d/" * 1500 + "\x1b[2J")),
        ("error", lambda home: os.mkfifo(home / name)),
        ("error", lambda home: (home / name).mkdir()),
        ("error", lambda home: listening(home, name)),
    ]
    kind = i // 2 % (len(kinds) + 2)
    if kind < len(kinds):
        kept = {n: content for n, content in files.items() if n != name}
        return Made(kept, kinds[kind][0], after=kinds[kind][1])

    def away(home: Path) -> None:
        """The file itself is outside, and a link leads to it: of shards that is refused."""
        (home / name).rename(home / outside)
        link_to(name, outside)(home)

    def beside(home: Path) -> None:
        (home / name).rename(home / "there")
        link_to(name, "there")(home)

    is_shard = bool(i % 2) and name.endswith(".safetensors")
    if kind == len(kinds):
        return Made(files, "error" if is_shard else "sound", after=away)
    return Made(files, "sound", after=beside)


def many_blocks(base: Base, blocks: int) -> bytes:
    """So many blocks that the header is nearly as long as is read, each as small as can be."""
    small = make_base(base.family, x=1, z=2, h=1, g=1, m=1, k=2, v=1, a=2, t=1)
    one, two = (small.family.prefixes[0] + small.family.block.format(n) for n in (0, 1))
    shapes = {n: list(t.shape) for n, t in small.tensors.items() if not n.startswith(two)}
    for number in range(1, blocks):
        here = small.family.prefixes[0] + small.family.block.format(number)
        shapes |= {
            n.replace(one, here): list(s.shape)
            for n, s in small.tensors.items()
            if n.startswith(one)
        }
    at, table = 0, {}
    for name, shape in shapes.items():
        end = at + 2 * math.prod(shape)
        table[name] = {"dtype": "F16", "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":")).encode()
    if base.is_zoo:
        net = json.dumps({"__metadata__": {"net": json.dumps({"heads": 1, "tokens": 4})}})
        text = net.encode()[:-1] + b"," + text[1:]
    return join(text, b"\0" * at)


def heavy(i: int, rng: random.Random, base: Base) -> Made:
    """What is legal and as large as a file may say without being so."""
    kind = i % 5
    if kind == 0:  # as many tensors as the header holds
        entry = b'"%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        text = b"{" + b",".join(entry % n for n in range(LIMIT // 60)) + b"}"
        return folder(base, join(text, b""), "error")
    if kind == 1:  # terabytes, none of them on the disk
        header, _ = split(base.raw)
        writer = next(w for w in base.family.writers if w.axes in ("t x", "p q x"))
        name = base.family.prefixes[0] + writer.name
        header[name]["shape"][-2] = 2**40 // 8
        at = 0
        for entry_ in (header[n] for n in header if n != "__metadata__"):
            end = at + 4 * math.prod(entry_["shape"])
            entry_["data_offsets"], at = [at, end], end
        raw = join(header, b"")
        return folder(
            base, raw, "error", after=lambda home: os.truncate(home / SINGLE, len(raw) + at)
        )
    if kind == 2:
        blocks = rng.choice([500, 1000])
        heads = base.config | {base.heads_key: 1}
        made = folder(Base(base.family, {}, heads), many_blocks(base, blocks), "any")
        return made
    if kind == 3:  # shards that are all the same long header
        raw = join(b"{" + b" " * (LIMIT // 2) + b"}", b"")
        weight_map = {str(n): f"{n}.safetensors" for n in range(900)}
        files = {"0.safetensors": raw, INDEX: json.dumps({"weight_map": weight_map}).encode()}

        def links(home: Path) -> None:
            for n in range(1, 900):
                link_to(f"{n}.safetensors", "0.safetensors")(home)

        return Made(files, "error", after=links)
    shards = {}
    for letter in "abcd":  # four long headers of different tensors
        entry = b'"%s%x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
        text = b",".join(entry % (letter.encode(), n) for n in range(LIMIT // 62))
        shards[f"{letter}.safetensors"] = join(b"{" + text + b"}", b"")
    files = {
        **shards,
        INDEX: json.dumps({"weight_map": dict(zip("abcd", shards, strict=True))}).encode(),
    }
    return Made(files, "error")


def categories(marker: Path) -> dict[str, tuple[int, Callable[[int, random.Random, Base], Made]]]:
    return {
        "truncated": (500, truncated),
        "header length": (300, header_length),
        "offsets": (500, offsets),
        "dtypes": (300, dtypes),
        "shapes": (500, shapes),
        "header: JSON": (530, header_json),
        "header: text and names": (200, header_text),
        "metadata": (200, metadata),
        "flipped bytes": (900, flips),
        "random bytes": (300, noise),
        "other formats": (300, other_formats(marker)),
        "NaN and infinity": (100, values),
        "tensors missing or renamed": (300, tensors),
        "config: values": (500, config_values),
        "config: text": (320, config_files),
        "index and shards": (400, index),
        "links and devices": (300, specials),
        "large": (30, heavy),
    }


@dataclass(frozen=True)
class Case:
    category: str
    number: int
    base: Base
    make: Callable[[int, random.Random, Base], Made]

    def write(self, home: Path) -> tuple[Path, Expected]:
        rng = random.Random(f"{self.category} {self.number}")
        made = self.make(self.number, rng, self.base)
        home.mkdir()
        for name, content in made.files.items():
            (home / name).write_bytes(content)
        if made.after:
            made.after(home)
        return home / made.opened if made.opened else home, made.expected


def all_cases(marker: Path, share: float) -> Iterator[Case]:
    """Of each category the same share; nothing in step with the kinds within it."""
    bases = [make_base(family) for family in FAMILIES.values()]
    for category, (count, make) in categories(marker).items():
        numbers = random.Random(category).sample(range(count), math.ceil(count * share))
        for number in sorted(numbers):
            base = random.Random(f"{number} {category}").choice(bases)
            yield Case(category, number, base, make)


# ----------------------------------------------------------------------------------- in process


def memory(key: str) -> float:
    """VmRSS now, or VmHWM at its highest, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024


def read_all(path: Path) -> None:
    """Open and read everything that others would; a wrong shape or dtype is an AssertionError."""
    with Checkpoint(path) as checkpoint:
        names = [*checkpoint.writers, *(head.weight for head in checkpoint.heads.values())]
        names += [head.bias for head in checkpoint.heads.values() if head.bias]
        for name in [*names, *(checkpoint.hidden_head or ())]:
            tensor = checkpoint.files.read(name)
            assert tensor.is_floating_point(), name
            assert tuple(tensor.shape) == checkpoint.files.entry(name).shape, name
        for i in range(min(checkpoint.blocks, 50)):
            batch = checkpoint.block(i)
            assert all(t.dtype == torch.float64 for t in batch.tensors.values())
            packed = checkpoint.pack(i, batch)
            for name, tensor in packed.items():
                original = checkpoint.files.read(name).double()
                assert torch.equal(tensor.nan_to_num(), original.nan_to_num()), name
        for norm in checkpoint.norm_names:
            assert all(part.shape == (checkpoint.D,) for part in checkpoint.norm(norm))
        assert isinstance(repr(checkpoint) + str(checkpoint.dtype), str)
        assert len(checkpoint.others) >= len(checkpoint.unknown)


def too_slow(*_: object) -> None:
    raise TooSlow


def outcome(path: Path, expected: Expected) -> tuple[str, float, str]:
    """`error`, `sound` or what is wrong; seconds; the message."""
    ended, message = "too slow", ""
    start = time.perf_counter()
    with suppress(TooSlow):  # around all of it: the alarm may ring while an error is on its way
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            read_all(path)
            ended = "sound"
        except CheckpointError as error:
            ended, message = "error", str(error)
        except Exception as error:
            ended, message = "unexpected exception", f"{type(error).__name__}: {error}"
        signal.setitimer(signal.ITIMER_REAL, 0)
    seconds = time.perf_counter() - start
    if seconds > SECONDS:
        ended = "too slow"
    elif ended == "error" and not (0 < len(message) <= CHARACTERS and message.isprintable()):
        ended = "unclear message"
    elif expected != "any" and ended in ("error", "sound") and ended != expected:
        ended = f"{ended}, expected {expected}"
    return ended, seconds, message


def in_process(cases: list[Case], folder: Path, verbose: bool) -> dict[str, Any]:
    signal.signal(signal.SIGALRM, too_slow)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    slowest: dict[str, float] = defaultdict(float)
    wrong: list[str] = []
    worst_memory, heaviest = 0.0, ""
    descriptors = len(os.listdir("/proc/self/fd"))
    for case in cases:
        home = folder / "case"
        path, expected = case.write(home)
        CLEAR.write_text("5")  # VmHWM starts again, without what making the case took
        ended, seconds, message = outcome(path, expected)
        counts[case.category][ended] += 1
        slowest[case.category] = max(slowest[case.category], seconds)
        if memory("VmHWM") > worst_memory:
            worst_memory, heaviest = memory("VmHWM"), f"{case.category} {case.number}"
        if ended not in ("error", "sound"):
            name = case.base.family.name
            wrong.append(f"{case.category} {case.number} ({name}): {ended}: {message[:200]!r}")
            print(wrong[-1])
        elif verbose:
            print(f"{case.category} {case.number}: {ended} {seconds:.3f} s {message}")
        shutil.rmtree(home)
        for stray in folder.glob("outside-*"):
            stray.unlink()
    return {
        "counts": {category: dict(counter) for category, counter in counts.items()},
        "slowest": dict(slowest),
        "wrong": wrong,
        "worst_memory": worst_memory,
        "heaviest": heaviest,
        "open_files": len(os.listdir("/proc/self/fd")) - descriptors,
    }


# --------------------------------------------------------------------------------- command line


def tnfn(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("tnfn"), *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=120,
        env=environment,
        stdin=subprocess.DEVNULL,
    )


def opens(path: Path) -> bool:
    """Some cases are errors only when their tensors are read, which `inspect` need not do."""
    try:
        with Checkpoint(path):
            return True
    except CheckpointError:
        return False


def through_command_line(cases: list[Case], folder: Path, count: int) -> tuple[int, list[str]]:
    """So many cases that end in an error, of all categories in turn; those with another end."""
    if tnfn("inspect", "--help").returncode:
        return 0, ["there is no command `tnfn inspect`"]
    queues: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        queues[case.category].append(case)
    done, wrong = 0, []
    turn = 0
    while done < count and any(queues.values()):
        for queue in queues.values():
            if done == count or not queue:
                continue
            # From the middle on: the first of a category are alike in all of them.
            case = queue.pop((7 * turn + len(queue) // 2) % len(queue))
            home = folder / "case"
            path, expected = case.write(home)
            if expected == "error" and not opens(path):
                result = tnfn("inspect", path)
                lines = result.stderr.splitlines()
                fine = (
                    result.returncode == 1
                    and len(lines) == 1
                    and lines[0].startswith("error: ")
                    and len(lines[0]) <= CHARACTERS
                    and "Traceback" not in result.stdout + result.stderr
                )
                if not fine:
                    shown = (result.stdout + result.stderr)[-300:]
                    wrong.append(f"{case.category} {case.number}: {result.returncode}: {shown!r}")
                    print(wrong[-1])
                done += 1
            shutil.rmtree(home)
            for stray in folder.glob("outside-*"):
                stray.unlink()
        turn += 1
    return done, wrong


# ----------------------------------------------------------------------------------------- main


def payload_works(folder: Path) -> bool:
    """Whether the pickles would do harm if someone read them; else they prove nothing."""
    marker = folder / "control"
    code = "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    for protocol in range(6):
        given = payload(protocol, marker).hex()
        subprocess.run([sys.executable, "-c", code, given], check=True, timeout=60)
        if not marker.exists():
            return False
        marker.unlink()
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="hostile") as name:
        folder, marker = Path(name), Path(name) / "marker"
        works = payload_works(folder)
        cases = list(all_cases(marker, 0.1 if options.quick else 1.0))
        level = memory("VmRSS")
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = int(memory("VmSize") * 2**20 + ADDRESS_SPACE)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        start = time.perf_counter()
        found = in_process(cases, folder, options.verbose)
        seconds = time.perf_counter() - start
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        lines, wrong_lines = through_command_line(cases, folder, 3 if options.quick else 50)
        executed = marker.exists()
    above = found["worst_memory"] - level
    ends: Counter[str] = Counter()
    for category, counts in found["counts"].items():
        ends.update(counts)
        shown = ", ".join(f"{count} {end}" for end, count in sorted(counts.items()))
        print(f"{category:<28} {shown:<28} slowest {found['slowest'][category]:.2f} s")
    worst = max(found["slowest"].values())
    print(f"{len(cases)} cases in {seconds:.0f} s: {dict(ends)}")
    print(f"slowest {worst:.2f} s; {above:.0f} MB above the level before, at {found['heaviest']!r}")
    print(f"command line: {lines} cases, {len(wrong_lines)} wrong; something ran: {executed}")
    for line in wrong_lines:
        print(line)
    figures = {
        "cases": len(cases),
        "ends": dict(ends),
        "categories": found["counts"],
        "wrong": len(found["wrong"]),
        "slowest_seconds": round(worst, 3),
        "megabytes_above": round(above, 1),
        "open_files_left": found["open_files"],
        "executed": executed,
        "payload_works": works,
        "command_line_cases": lines,
        "command_line_wrong": len(wrong_lines),
    }
    targets = {
        "cases": 500 if options.quick else 5000,
        "wrong": 0,
        "slowest_seconds": SECONDS,
        "megabytes_above": MEGABYTES,
        "command_line_cases": 3 if options.quick else 50,
        "command_line_wrong": 0,
    }
    ok = (
        len(cases) >= targets["cases"]
        and not found["wrong"]
        and worst <= SECONDS
        and above <= MEGABYTES
        and not found["open_files"]
        and works
        and not executed
        and lines == targets["command_line_cases"]
        and not wrong_lines
    )
    if options.json:
        print(json.dumps({"figures": figures, "targets": targets, "ok": ok}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
