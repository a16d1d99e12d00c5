"""Lies inside one safetensors file: its length, header, metadata, bytes and tensors."""

import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import torch

from benchmarks.safety.hostile_files.material import (
    FAMILIES,
    LIMIT,
    Base,
    Expected,
    Json,
    Made,
    changed,
    folder,
    join,
    json_texts,
    make_base,
    pick,
    split,
)


def truncated(i: int, rng: Random, base: Base) -> Made:
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


def header_length(i: int, rng: Random, base: Base) -> Made:
    raw = base.raw
    (length,) = struct.unpack("<Q", raw[:8])
    fixed = [0, 1, 2, 7, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 8]
    fixed += [len(raw), len(raw) - 8, len(raw) - 7, LIMIT, LIMIT + 1, 100_000_000]
    fixed += [length + d for d in (-64, -8, -2, -1, 1, 2, 8, 64)]
    value = pick(i, [*fixed, rng.randrange(2**64), rng.randrange(len(raw) * 2)])
    expected: Expected = "sound" if value == length else "error"
    return folder(base, struct.pack("<Q", value) + raw[8:], expected)


def offsets(i: int, rng: Random, base: Base) -> Made:
    header, data = split(base.raw)
    names = [name for name in header if name != "__metadata__"]
    name, stranger = rng.sample(names, 2)
    begin, end = header[name]["data_offsets"]
    values: list[Json] = [header[stranger]["data_offsets"], [end, begin], [-begin - 1, -end]]
    values += [[begin - end, 0], [begin + 1, end + 1], [begin, end + 1]]
    values += [[begin + 2**63, end + 2**63], [begin + 2**64, end + 2**64], [0, 2**63 - 1]]
    values += [[10**50, 10**50 + end - begin], [float(begin), float(end)], [begin, end + 0.5]]
    values += [[False, True], [str(begin), str(end)], [None, None], [begin], [begin, end, end]]
    values += [[[begin, end]], {"begin": begin, "end": end}, f"{begin},{end}", begin, None, True]
    values += [[], [1e400, 1e400], list(range(50_000))]

    def moved(value: Json) -> Made:
        legal = json.dumps(value) == json.dumps([begin, end])
        return changed(base, name, "data_offsets", value, "sound" if legal else "error")

    def hole() -> Made:
        gap = 8 * (1 + rng.randrange(4))
        for entry in (header[n] for n in names):
            if entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [place + gap for place in entry["data_offsets"]]
        return folder(base, join(header, data[:end] + b"\0" * gap + data[end:]), "error")

    def same_place() -> Made:
        for n in names:
            size = header[n]["data_offsets"][1] - header[n]["data_offsets"][0]
            header[n]["data_offsets"] = [0, size]
        return folder(base, join(header, data), "error")

    def exchanged() -> Made:  # legal, since they have one size
        same = [n for n in names if header[n]["shape"] == header[name]["shape"]]
        one, two = rng.choice(same), rng.choice(same)
        places = header[one]["data_offsets"], header[two]["data_offsets"]
        header[two]["data_offsets"], header[one]["data_offsets"] = places
        return folder(base, join(header, data), "sound")

    def absent() -> Made:
        del header[name]["data_offsets"]
        return folder(base, join(header, data), "error")

    makes: list[Callable[[], Made]] = [partial(moved, value) for value in values]
    return pick(i, [*makes, hole, same_place, exchanged, absent])()


def dtypes(i: int, rng: Random, base: Base) -> Made:
    names = ["F64", "F16", "BF16", "I64", "I16", "I8", "U8", "BOOL", "I32", "U32", "F8_E4M3"]
    names += ["F4", "f32", "float32", "torch.float32", "", " F32", "F32\0", "O", "C64"]
    names += ["F32" * 9999]
    values = [*names, None, 32, 3.5, True, [], ["F32"], {}, {"F32": 1}, "\x1b[2J", "\ud800"]
    return changed(base, rng.choice(base.matrices), "dtype", pick(i, values))


def shapes(i: int, rng: Random, base: Base) -> Made:
    name = rng.choice(base.matrices)
    shape = list(base.tensors[name].shape)
    count = math.prod(shape)
    values: list[Json] = [[-n for n in shape], [-1, count], [0, *shape], [*shape, 0], []]
    values += [[count + 1], [2**63], [2**64 + shape[0], *shape[1:]], [2**32, 2**32, *shape]]
    values += [[2**62, 4, count], [2**63 - 1] * 8, [1] * 7 + shape, [1] * 100_000 + shape]
    values += [[1, *shape], [*shape, 1], [count], [float(n) for n in shape]]
    values += [[str(n) for n in shape], [None] * len(shape), [True, *shape], [shape], {"0": count}]
    values += [str(shape), count, None, [count, 10**60], [10**99]]

    def turned() -> Made:
        square = shape[::-1] == shape
        return changed(base, name, "shape", shape[::-1], "sound" if square else "error")

    def of_another_net() -> Made:  # sound in itself, but not with this config
        label, size = rng.choice("xhkvagmt"), rng.choice([0, 1, 3, 5, 16])
        return folder(base, make_base(base.family, **{label: size}).raw, "any")

    def no_numbers() -> Made:
        return folder(base, make_base(base.family, **dict.fromkeys("xzhgmkvat", 0)).raw, "error")

    def empty_but_wide() -> Made:
        header, data = split(base.raw)
        wide = rng.choice([[0, 2**62, 2**62], [2**62, 0], [2**62, 2**62, 0]])
        entry = {"dtype": "F32", "shape": wide, "data_offsets": [0, 0]}
        return folder(base, join({**header, "unknown": entry}, data), "any")

    def larger() -> Made:
        wrong = torch.zeros([n + rng.randrange(1, 3) for n in shape])
        return folder(base, replace(base, tensors={**base.tensors, name: wrong}).raw, "error")

    makes: list[Callable[[], Made]] = [
        *(partial(changed, base, name, "shape", value) for value in values),
        *(turned, of_another_net, no_numbers, empty_but_wide, larger),
    ]
    return pick(i, makes)()


def header_json(i: int, rng: Random, base: Base) -> Made:
    """Hostile JSON as a tensor's entry, its shape, its dtype, the metadata, or the whole header."""
    texts = json_texts(rng)
    text = texts[i % len(texts)]()
    header, data = split(base.raw)
    place = (i // len(texts)) % 5
    if place == 3:
        header.pop("__metadata__", None)
    rest = b"," + json.dumps(header).encode()[1:]
    around = [
        (b'{"x":', rest),
        (b'{"x":{"dtype":"F32","data_offsets":[0,0],"shape":', b"}" + rest),
        (b'{"x":{"shape":[0],"data_offsets":[0,0],"dtype":', b"}" + rest),
        (b'{"__metadata__":', rest),
        (b"", b""),
    ]
    before, after = around[place]
    legal = place == 3 and text == b"{}" and not base.is_zoo
    return folder(base, join(before + text + after, data), "sound" if legal else "error")


def header_text(i: int, rng: Random, base: Base) -> Made:
    """The header as a whole: encodings, spaces, repeated keys, names."""
    header, data = split(base.raw)
    plain = json.dumps(header).encode()
    name = rng.choice(base.matrices)
    entry = json.dumps({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}).encode()
    strange = ["\0", "a\0b", "../../etc/passwd", "/etc/passwd", "\x1b[31m", "\r\n", "\u202e", ""]
    strange += [" ", "x" * 100_000, "x" * (LIMIT // 2), "\U0001f600" * 50, "__class__"]
    strange += ["$(touch x)", "é" * 90]
    starts_like_a_pickle = 0x10280  # as a length
    texts: list[tuple[bytes, Expected]] = [
        (b" " + plain, "error"),
        (b"\xef\xbb\xbf" + plain, "error"),
        (plain + b" " * rng.randrange(100), "sound"),
        (plain + b" " * (LIMIT // 2), "sound"),
        (plain.ljust(starts_like_a_pickle + 256 * rng.randrange(4)), "sound"),
        (plain + b"\0" * 8, "error"),
        (plain + b"{}", "error"),
        (plain.decode().encode("utf-16-le"), "error"),
        (plain.decode().encode("utf-32-le"), "error"),
        (plain[:-1] + b"," + json.dumps({name: header[name]}).encode()[1:], "error"),
        (plain.replace(b'"dtype"', b'"dtype":"F32","dtype"', 1), "error"),
        (plain.replace(b'"dtype"', b'"more":1,"dtype"', 1), "error"),
        (b"[" + plain + b"]", "error"),
    ]
    for odd in strange:
        text = b"{" + json.dumps(odd).encode() + b":" + entry + b"," + plain[1:]
        texts.append((text, "sound" if odd.isprintable() else "error"))
    text, expected = pick(i, texts)
    return folder(base, join(text, data), expected)


def metadata(i: int, rng: Random, base: Base) -> Made:
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


def flips(i: int, rng: Random, base: Base) -> Made:
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


def noise(i: int, rng: Random, base: Base) -> Made:
    body = rng.randbytes(rng.choice([0, 1, 7, 8, 9, 100, 1000, 50_000]))
    if i % 3 == 1:  # with a length that fits
        body = struct.pack("<Q", rng.randrange(len(body) + 1)) + body
    if i % 3 == 2:
        body = struct.pack("<Q", len(body) + 1) + b"{" + body
    return folder(base, body, "error")


def values(i: int, rng: Random, base: Base) -> Made:
    """NaN and infinities are numbers to a reader: the file opens and gives them back."""
    special = torch.tensor([math.nan, math.inf, -math.inf, 3e38, 1e-45, -0.0])
    dtype = pick(i, [torch.float32, torch.float16, torch.bfloat16, torch.float64])
    tensors = {}
    for name, tensor in base.tensors.items():
        some = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(i)) < 0.3
        tensors[name] = torch.where(some, special[rng.randrange(6)], tensor).to(dtype)
    return folder(base, replace(base, tensors=tensors).raw, "sound")


def tensors(i: int, rng: Random, base: Base) -> Made:
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
    return folder(base, replace(base, tensors=made).raw, "any")
