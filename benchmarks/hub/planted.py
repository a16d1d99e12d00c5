"""A hub to work on: many small checkpoints of several families, copies in disguise, broken files.

A template of each family is written by `transformers`, or as `tnfn zoo export` does it; all others
have its header and random numbers of their own. Files of one family and size share folders of 100
with one config.json.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import apply_element, random_net_element

SIZES: tuple[dict[str, int], ...] = (
    {"hidden_size": 16, "intermediate_size": 32},
    {"hidden_size": 24, "intermediate_size": 48},
    {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3},
)
LARGE = ({"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6},)
GPT2 = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
A_FOLDER = 100
#: Of so many files one is a copy and one is broken: these.
RARE, COPY, BROKEN = 100, 98, 99
#: So many are written by this process alone.
FEW = 100


@dataclass(frozen=True)
class Template:
    """A sound file: what stands before its numbers, and how large each of them usually is."""

    name: str
    start: bytes
    centre: np.ndarray
    scale: np.ndarray
    config: Path | None

    def random(self, seed: int) -> bytes:
        """Another network of the same shape."""
        noise = np.random.default_rng(seed).standard_normal(len(self.centre), dtype=np.float32)
        return self.start + (self.centre + self.scale * noise).tobytes()


@dataclass(frozen=True)
class Hub:
    """What was planted.

    Attributes:
        home: Where all of it is.
        copies: Pairs of files that are one network.
        broken: Files that are none.
    """

    home: Path
    copies: frozenset[frozenset[str]]
    broken: frozenset[str]


def templates(home: Path, large: bool = False) -> list[Template]:
    """Five families of `transformers` in three sizes, and two blocks of a zoo; or three large."""
    found = []
    for family in ("gpt2", "bert", "llama") if large else made.FAMILIES:
        for number, size in enumerate(LARGE if large else SIZES):
            names = GPT2 if family == "gpt2" else {}
            heads = max(2, size["hidden_size"] // 64)
            changes = {**size, "num_attention_heads": heads}
            if family in ("llama", "qwen2"):
                changes |= {"num_attention_heads": 2 * heads, "num_key_value_heads": heads}
            changes = {names.get(name, name): value for name, value in changes.items()}
            folder = made.save(made.model(family, **changes), home / f"{family}-{number}")
            file = folder / "model.safetensors"
            found.append(_template(folder.name, file, folder / "config.json"))
    for block in () if large else ("paper", "residual"):
        file = made.zoo_net(home / f"{block}.safetensors", block)
        found.append(_template(f"zoo-{block}", file, None))
    return found


def _template(name: str, file: Path, config: Path | None) -> Template:
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little") + 8
    header = json.loads(content[8:length])
    centre = np.zeros((len(content) - length) // 4, dtype=np.float32)
    scale = np.ones_like(centre)
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            here = slice(*(place // 4 for place in entry["data_offsets"]))
            norm = tensor.endswith("weight") and len(entry["shape"]) == 1
            centre[here] = 1.0 if norm else 0.0
            scale[here] = 0.3
    return Template(name, content[:length], centre, scale, config)


def place_of(home: Path, number: int, kinds: list[Template]) -> Path:
    """Every kind in turn, so that any beginning of the hub is like all of it."""
    kind = kinds[number % len(kinds)]
    chunk = number // (A_FOLDER * len(kinds))
    return home / kind.name / f"{chunk:04d}" / f"{number:06d}.safetensors"


def plant(home: Path, count: int, kinds: list[Template], processes: int = 2) -> Hub:
    """Write `count` files: of each hundred one is a copy of another in disguise, one is broken."""
    sound = [n for n in range(count) if n % RARE != COPY]
    copies = [n for n in range(count) if n % RARE == COPY]
    for kind in range(len(kinds)):
        for number in range(kind, count, A_FOLDER * len(kinds)):
            folder = place_of(home, number, kinds).parent
            folder.mkdir(parents=True)
            if kinds[kind].config is not None:
                shutil.copy(kinds[kind].config, folder / "config.json")
    with _pool(processes if count > FEW else 1) as pool:
        list(pool.map(partial(_write, home, kinds), sound, chunksize=500))
        list(pool.map(partial(_disguise, home, kinds), copies, chunksize=20))
    return what_is_planted(home, count, kinds)


def _pool(processes: int) -> Executor:
    """One of one is a thread: nothing is imported again, which takes longer than a few files."""
    if processes == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))


def what_is_planted(home: Path, count: int, kinds: list[Template]) -> Hub:
    """Which of the first files are what."""
    where = partial(place_of, home, kinds=kinds)
    copies = {
        frozenset({str(where(n)), str(where(n - len(kinds)))}) for n in range(COPY, count, RARE)
    }
    broken = {str(where(n)) for n in range(BROKEN, count, RARE)}
    return Hub(home, frozenset(copies), frozenset(broken))


def link(hub: Hub, home: Path, count: int, kinds: list[Template]) -> Hub:
    """The first files of a hub once more."""
    for number in range(count):
        source, target = (place_of(place, number, kinds) for place in (hub.home, home))
        if not target.parent.exists():
            target.parent.mkdir(parents=True)
            if (source.parent / "config.json").exists():
                os.link(source.parent / "config.json", target.parent / "config.json")
        os.link(source, target)
    return what_is_planted(home, count, kinds)


def _write(home: Path, kinds: list[Template], number: int) -> None:
    content = kinds[number % len(kinds)].random(number)
    if number % RARE == BROKEN:
        content = damaged(content, number // RARE)
    place_of(home, number, kinds).write_bytes(content)


def _disguise(home: Path, kinds: list[Template], number: int) -> None:
    """The same function by a random element of its whole group; written elsewhere, then moved."""
    file = place_of(home, number, kinds)
    away = file.with_name(f".{file.stem}")
    with Checkpoint(place_of(home, number - len(kinds), kinds)) as checkpoint:
        generator = torch.Generator().manual_seed(number)
        element = random_net_element(checkpoint, generator, condition=10.0)
        written = apply_element(checkpoint, element, away / "model.safetensors")
    os.replace(written, file)
    shutil.rmtree(away)


def damaged(content: bytes, kind: int) -> bytes:
    """A file with something wrong in it that can be seen."""
    length = int.from_bytes(content[:8], "little") + 8
    header = json.loads(content[8:length])
    names = [name for name in header if name != "__metadata__"]
    ways = (
        lambda: b"",
        lambda: content[: length // 2],  # within the header
        lambda: content[:-4],
        lambda: b"\x80\x02" + content,  # a pickle begins like that
        lambda: (2**40).to_bytes(8, "little") + content[8:],
        lambda: content[:8] + b"\xff" * (length - 8) + content[length:],
        lambda: content[:length] + b"\x00\x00\xc0\x7f" * ((len(content) - length) // 4),  # NaN
        lambda: _with(header, {names[0]: header[names[0]] | {"dtype": "F33"}}) + content[length:],
        lambda: _with(header, {names[0]: header[names[0]] | {"shape": [2**62]}}) + content[length:],
        lambda: _with({name: header[name] for name in names[::2]}, {}) + content[length:],
    )
    return ways[kind % len(ways)]()


def _with(header: dict[str, object], change: dict[str, object]) -> bytes:
    text = json.dumps(header | change).encode()
    return len(text).to_bytes(8, "little") + text


def files_of(home: Path) -> Iterator[str]:
    """All checkpoints, folder by folder."""
    for place, folders, names in os.walk(home):
        folders.sort()
        yield from (os.path.join(place, name) for name in sorted(names) if "safetensors" in name)
