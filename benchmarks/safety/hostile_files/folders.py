"""Lies around the tensors: config, index and shards, links and devices, other formats."""

import io
import json
import os
import socket
import struct
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.safety.hostile_files.material import (
    INDEX,
    LIMIT,
    SINGLE,
    Base,
    Expected,
    Json,
    Made,
    Make,
    folder,
    join,
    json_texts,
    pick,
    sharded,
    split,
)


def payload(protocol: int, marker: Path) -> bytes:
    """A pickle that makes the marker file when it is read."""
    start = b"" if protocol < 2 else bytes([0x80, protocol])
    return start + b"cos\nsystem\n(S'touch %s'\ntR." % str(marker).encode()


def other_formats(marker: Path) -> Make:
    def archive(protocol: int) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as file:
            file.writestr("archive/data.pkl", payload(protocol, marker))
            file.writestr("archive/version", "3\n")
        return buffer.getvalue()

    def make(i: int, rng: Random, base: Base) -> Made:
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
        names = [SINGLE, "pytorch_model.bin", "x.pt", "x.ckpt", "x.pkl", "x"]
        name = pick(i // len(contents), names)
        if name == SINGLE:
            return folder(base, content, "error")
        return Made({name: content, "config.json": b"{}"}, "error", opened=name)

    return make


def config_values(i: int, rng: Random, base: Base) -> Made:
    keys = ["model_type", "layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps", "norm", "tokens"]
    keys += ["architectures", "hidden_act", "activation_function", "tie_word_embeddings"]
    keys += ["head_dim", "block"]
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


def config_files(i: int, rng: Random, base: Base) -> Made:
    texts = json_texts(rng)
    text = texts[i % len(texts)]()
    if (i // len(texts)) % 3 == 1 and text:
        text = b'{"model_type": ' + text + b"}"
    if (i // len(texts)) % 3 == 2:  # longer than what is read
        text = json.dumps(base.config).encode() + b" " * (LIMIT + rng.randrange(LIMIT))
    return config_text(base, text, "error")


def index(i: int, rng: Random, base: Base) -> Made:
    files = sharded(base)
    weight_map: dict[str, Json] = json.loads(files[INDEX])["weight_map"]
    some = rng.choice(list(weight_map))
    paths: list[Json] = ["../b.safetensors", "/etc/passwd", "..", ".", "", "./b.safetensors"]
    paths += ["x/../b.safetensors", "C:\\b.safetensors", "..\\b", "b.safetensors\0", "\0", "\n"]
    paths += ["x" * 256, "x" * 100_000, "\ud800", "\udc80", "/dev/zero", "/proc/self/mem", "~"]
    paths += [INDEX]
    paths += ["missing.safetensors", "config.json", "\x1b[2J", "b.safetensors/", "//b.safetensors"]
    paths += [None, 1, True, [], {}, ["b.safetensors"], {"b.safetensors": 1}]

    def of(table: Json) -> Json:
        return {"weight_map": table}

    def numbered(count: int) -> Json:
        return of({str(n): f"{n}.safetensors" for n in range(count)})

    def no_table() -> Json:
        return of(rng.choice([None, [], "a.safetensors", 1, list(weight_map)]))

    def tensor_in_both() -> Json:
        files["a.safetensors"] = files["b.safetensors"]
        return of(weight_map)

    def in_the_other_shard() -> Json:
        other = "b.safetensors" if weight_map[some][0] == "a" else "a.safetensors"
        return of({**weight_map, some: other})

    def tensor_of_no_shard() -> Json:
        return of({**weight_map, "x" * rng.choice([1, 1000, 1_000_000]): "b.safetensors"})

    def tensor_the_index_lacks() -> Json:
        return of({n: file for n, file in weight_map.items() if n != some})

    def cut_shard() -> Json:
        name = rng.choice(["a.safetensors", "b.safetensors"])
        files[name] = files[name][: rng.randrange(len(files[name]))]
        return of(weight_map)

    wholes: list[Callable[[], Json]] = [
        *(partial(of, {**weight_map, some: path}) for path in paths),
        partial(numbered, 100_000),
        partial(numbered, 4096),
        partial(of, {}),
        no_table,
        tensor_in_both,
        in_the_other_shard,
        tensor_of_no_shard,
        tensor_the_index_lacks,
        cut_shard,
        lambda: rng.choice([[], {}, None, "weight_map", 1]),
    ]
    kind = i % (len(wholes) + 2)
    if kind == len(wholes):
        files[INDEX] = b'{"weight_map":' + rng.choice(json_texts(rng))() + b"}"
        return Made(files, "error")
    opened = pick(i, ["", INDEX])
    if kind == len(wholes) + 1:
        return Made(files, "sound", opened)
    files[INDEX] = json.dumps(wholes[kind]()).encode()
    return Made(files, "error", opened)


def link_to(name: str, target: str) -> Callable[[Path], None]:
    def link(home: Path) -> None:
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(target)

    return link


def listening(home: Path, name: str) -> None:
    """A socket's name in a folder; its path may not be longer than some hundred characters."""
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(home / name))


def specials(i: int, rng: Random, base: Base) -> Made:
    """Links, folders, pipes, sockets and devices where files should be."""
    files = sharded(base) if i % 2 else folder(base, base.raw, "any").files
    places = [name for name in files if name != "config.json" or not base.is_zoo]
    name = rng.choice(places)
    outside = f"../outside-{name}"
    devices = ["zero", "urandom", "full", "tty", "stdin", "null"]
    targets = [*(f"/dev/{device}" for device in devices), "/proc/self/mem", "/proc/self/environ"]
    targets += [name, f"./{name}/x", "missing", "/", "/etc/passwd", "d/" * 1500 + "\x1b[2J"]
    instead: list[Callable[[Path], None]] = [
        *(link_to(name, target) for target in targets),
        lambda home: os.mkfifo(home / name),
        lambda home: (home / name).mkdir(),
        lambda home: listening(home, name),
    ]
    kind = i // 2 % (len(instead) + 2)
    if kind < len(instead):
        kept = {n: content for n, content in files.items() if n != name}
        return Made(kept, "error", after=instead[kind])

    def away(home: Path) -> None:
        """The file itself is outside, and a link leads to it: of shards that is refused."""
        (home / name).rename(home / outside)
        link_to(name, outside)(home)

    def beside(home: Path) -> None:
        (home / name).rename(home / "there")
        link_to(name, "there")(home)

    is_shard = bool(i % 2) and name.endswith(".safetensors")
    if kind == len(instead):
        return Made(files, "error" if is_shard else "sound", after=away)
    return Made(files, "sound", after=beside)
