"""Small sound checkpoints of every family, and the pieces that `hostile` files are made of."""

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

import torch
from safetensors.torch import save
from torch import Tensor

from transformer_nfn.checkpoints import FAMILIES as SHIPPED
from transformer_nfn.checkpoints import Family
from transformer_nfn.checkpoints.files.header import MAX_HEADER
from transformer_nfn.checkpoints.layout import Layout
from transformer_nfn.space import ClassToken, Inputs, PatchPositions

LIMIT = MAX_HEADER  # and of config.json
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

Expected = Literal["error", "sound", "any"]
Json = Any
T = TypeVar("T")


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
    def metadata(self) -> dict[str, str] | None:
        return {"net": json.dumps(self.config)} if self.is_zoo else None

    @property
    def raw(self) -> bytes:
        return save(self.tensors, self.metadata)

    @property
    def beside(self) -> dict[str, bytes]:
        """The other files of its folder."""
        return {} if self.is_zoo else {"config.json": json.dumps(self.config).encode()}

    @property
    def matrices(self) -> list[str]:
        """Names of the blocks' weights, which must all be there."""
        prefix = self.family.prefixes[0] + self.family.block
        return [prefix.format(i) + m.weight for i in (0, 1) for m in self.family.matrices]

    @property
    def heads_key(self) -> str:
        return next(key for key in ("n_head", "num_attention_heads", "heads") if key in self.config)


#: Of each way to lay out a file one family; tables that only name tensors otherwise add nothing.
FAMILIES = {
    name: SHIPPED[name]
    for name in ("bert", "vit", "deit", "gpt2", "llama", "zoo-residual", "zoo-paper")
}


def make_base(family: Family, **changes: int) -> Base:
    """D=8, 2 heads of 4 (Llama: in 1 group), 6 hidden neurons, 2 blocks, 5 tokens."""
    sizes = {"x": 8, "z": 9, "h": 2, "g": 1, "m": 2, "k": 4, "v": 4, "a": 6, "t": 5}
    sizes |= {"p": 1, "q": 1, "r": 1} | changes
    stream = [sizes["x"]]
    shapes: dict[str, list[int]] = {}
    prefix = family.prefixes[0]
    parts = ("weight", "bias") if family.norm_shifts else ("weight",)
    for block in range(2):
        here = prefix + family.block.format(block)
        for matrix in family.matrices:
            layout = Layout.of(matrix)
            outer, after = ([sizes[a] for a in axes] for axes in (layout.before, layout.after))
            parts_of = [[sizes[a] for a in part] for part in layout.parts]
            beside = parts_of[0] if len(parts_of) == 1 else [sum(map(math.prod, parts_of))]
            numbers = [*outer, *beside, *after]
            shapes[here + matrix.weight] = numbers
            bare = layout.without_stream()
            around = math.prod(sizes[label] for label in (*bare.before, *bare.after))
            inner = around * sum(math.prod(sizes[label] for label in part) for part in bare.parts)
            if family.norms:  # a Linear joins all axes but the stream's; a zoo's net keeps each
                first = matrix.axes.startswith("x")
                shapes[here + matrix.weight] = [*stream, inner] if first else [inner, *stream]
            if matrix.bias:
                is_inner = matrix.bias_tensor in (None, "bA")
                shapes[here + matrix.bias] = [inner] if is_inner else stream
        for norm in family.norms or ():
            shapes |= {f"{here}{norm}.{part}": stream for part in parts}
    for norm in filter(None, (family.first_norm, family.last_norm)):
        shapes |= {f"{prefix}{norm}.{part}": stream for part in parts}
    for writer in family.writers:
        shapes[prefix + writer.name] = [sizes[a] for a in writer.axes.split()]
    # Images are of one patch; a place for it, and for each token before it.
    tokens = sum(isinstance(step, ClassToken) for step in family.embeddings)
    for step in family.embeddings:
        if isinstance(step, PatchPositions):
            shapes[prefix + step.name] = [sizes["p"], 1 + tokens, *stream]
    if not family.norms:
        shapes |= {"classifier.weight1": [sizes["x"], 3], "classifier.bias1": [3]}
        shapes |= {"classifier.weight2": [3, 2], "classifier.bias2": [2]}
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return Base(family, tensors, make_config(family))


def make_config(family: Family) -> dict[str, Json]:
    if family.norms is None:
        return {"heads": 2, "tokens": 4, "block": family.name.removeprefix("zoo-")}
    kind = {"model_type": family.model_types[0]}
    if family.name == "gpt2":
        return kind | {"n_head": 2, "n_layer": 2, "architectures": ["GPT2LMHeadModel"]}
    config: dict[str, Json] = kind | {"num_attention_heads": 2, "hidden_act": "gelu"}
    config |= {"num_hidden_layers": 2}
    if family.inputs is Inputs.IMAGES:
        config["image_size"] = 1
    if family.name == "llama":
        rope = {"rope_theta": 10000.0, "rope_type": "default"}
        config |= {"num_key_value_heads": 1, "rope_parameters": rope, "tie_word_embeddings": True}
        config |= {"attention_bias": True, "mlp_bias": True}
    return config


def split(raw: bytes) -> tuple[dict[str, Json], bytes]:
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def join(header: dict[str, Json] | bytes, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@dataclass(frozen=True)
class Made:
    """A folder's files, what must come of it, what is opened, and links or devices to add."""

    files: dict[str, bytes]
    expected: Expected
    opened: str = ""
    after: Callable[[Path], None] | None = None


Make = Callable[[int, Random, Base], Made]


def folder(base: Base, raw: bytes, expected: Expected, **more: Any) -> Made:
    return Made({SINGLE: raw, **base.beside}, expected, **more)


def changed(base: Base, name: str, key: str, value: Json, expected: Expected = "error") -> Made:
    """One field of one tensor's entry is another."""
    header, data = split(base.raw)
    header[name][key] = value
    return folder(base, join(header, data), expected)


def pick(i: int, choices: Sequence[T]) -> T:
    """All of them in turn."""
    return choices[i % len(choices)]


def sharded(base: Base) -> dict[str, bytes]:
    """Two shards and their index."""
    names = list(base.tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    files = {
        file: replace(base, tensors={n: base.tensors[n] for n in part}).raw
        for file, part in halves.items()
    }
    weight_map = {n: file for file, part in halves.items() for n in part}
    return {
        **files,
        INDEX: json.dumps({"metadata": {}, "weight_map": weight_map}).encode(),
        **base.beside,
    }


def nested(open_: bytes, close: bytes, depth: int, inside: bytes = b"") -> bytes:
    return open_ * depth + inside + close * depth


def crowded(item: bytes, size: int) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


def json_texts(rng: Random) -> list[Callable[[], bytes]]:
    """Values that are hostile wherever JSON is read; made when needed, since some are long."""
    room = LIMIT - 10_000  # a sound header beside it
    short = [b"", b"nul", b"[", b"{", b'"', b"\xff\xfe", b'"\xff"', b"NaN", b"-Infinity", b"1e999"]
    short += [b"1" * 4000, b"-" + b"9" * 5000, b"1" * 300_000, b"0." + b"3" * 100_000, b"01", b"1,"]
    short += [b'"' + b"x" * 1_000_000 + b'"', b'"\\ud800"', b'"\\u0000"', b'"\\x"', b"'a'", b"//"]
    short += [b'{"a":1,"a":1}', b'[{"b":[],"b":[]}]', b"[1,]", b"{,}", b"\0", b"true", b"[]", b"{}"]
    made: list[Callable[[], bytes]] = [partial(bytes, text) for text in short]
    for depth in (16, 33, 100, 500, *range(900, 1001, 4), 5000, 100_000, 1_000_000):
        made.append(partial(nested, b"[", b"]", depth))
        made.append(partial(nested, b'{"":', b"}", depth, b"0"))
    items = [b"[]", b"{}", b'{"":0}', b'{"":{}}', b"0", b"1.5", b'""', b"null", b"[[]]"]
    items += [b'"\\u1234"', nested(b"[", b"]", 20), nested(b"[", b"]", 800)]
    lengths = [room, room // 2, room // 20]
    made += [partial(crowded, item, rng.choice(lengths)) for item in items]
    made.append(lambda: b"{%s}" % b",".join(b'"%d":{}' % n for n in range(room // 12)))
    made.append(lambda: b" " * room + b"0")
    return made
