"""What is fuzzed of checkpoints: headers, shards, configs, certificates, whole networks."""

import io
import json
from functools import lru_cache
from pathlib import Path

import torch

from benchmarks.safety.fuzzing.engine import Reader, any_of
from benchmarks.safety.fuzzing.gguf_bytes import made, small_llama
from benchmarks.safety.fuzzing.mutate import Each, json_text, pack, plain, safetensors, unpack
from benchmarks.safety.hostile import read_all
from benchmarks.safety.hostile_files.material import FAMILIES, INDEX, SINGLE, make_base, sharded
from transformer_nfn.bench import BenchError
from transformer_nfn.bench.ranking import read_net
from transformer_nfn.checkpoints import FAMILIES as SHIPPED
from transformer_nfn.checkpoints import (
    Checkpoint,
    CheckpointError,
    TensorFiles,
    open_files,
    read_header,
)
from transformer_nfn.checkpoints.files.header import read_json_object
from transformer_nfn.checkpoints.gguf.header import read_gguf_header
from transformer_nfn.checkpoints.settings.keys import Keys, read_settings
from transformer_nfn.checkpoints.soundness import check_settings
from transformer_nfn.hub import FingerprintTask
from transformer_nfn.identity import (
    NetElement,
    apply_element,
    inspect_checkpoint,
    load_certificate,
    random_net_element,
    same,
    save_certificate,
    verify,
)
from transformer_nfn.kinship import Fingerprint
from transformer_nfn.zoo.dataset import NetShape

ROOM = "transformer_nfn.checkpoints."
IDENTITY = "transformer_nfn.identity."
ELEMENTS = f"{IDENTITY}elements."
KINSHIP = "transformer_nfn.kinship."
JSON = (f"{ROOM}files.header:read_json_object,_integer,_no_constant,_deep",)
HEADER = (
    *JSON,
    f"{ROOM}files.header:read_header,_other_kind,_cut_short,_metadata,_entry,_counts,_check_places",
)
OPENING = (
    *HEADER,
    *(ROOM + name for name in ("files.tensors", "files.places", "config", "checkpoint")),
)
SOUNDNESS = tuple(
    ROOM + name
    for name in ("soundness", "agreement", "layout", "family", "settings.keys", "settings.rotary")
)
KEYS = (f"{ROOM}settings.keys", f"{ROOM}settings.rotary")


@lru_cache
def bases() -> list:  # type: ignore[type-arg]
    return [make_base(family) for family in FAMILIES.values()]


def small() -> bytes:
    """Three tensors: most inputs should be short."""
    from safetensors.torch import save

    named = {"a": torch.zeros(2, 3), "b.weight": torch.ones(4).half(), "c": torch.arange(3)}
    return save(named, {"net": '{"heads": 2}'})


def header(data: bytes) -> None:
    read_header(io.BytesIO(data), len(data), "file")


def settings(data: bytes) -> None:
    """One config for every family."""
    config = read_json_object(data, "config.json")
    tables = [keys for family in SHIPPED.values() for keys in family.keys.values()]

    def read(keys: Keys) -> None:
        check_settings(read_settings(keys, config, (), 2, {}), "config.json")

    any_of(read, tables)


def config_seeds() -> list[bytes]:
    """The small checkpoints' configs, and one that says all there is of positions and windows."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "long_factor": [1.0, 2]}
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    kinds = {"layer_types": ["sliding_attention", "full_attention"]}
    llama = {"num_attention_heads": 2, "rope_scaling": rope, "max_position_embeddings": 8}
    configs = [base.config for base in bases()] + [llama | window, llama | window | kinds]
    return [json.dumps(config).encode() for config in configs]


def shards(data: bytes) -> None:
    index, first, second = unpack(data, 3)
    home = Path("shards")
    home.mkdir(exist_ok=True)
    (home / INDEX).write_bytes(index)
    (home / "a.safetensors").write_bytes(first)
    (home / "b.safetensors").write_bytes(second)
    with TensorFiles(home) as files:
        for name in files:
            whole = files.read(name)
            assert tuple(whole.shape) == files.entry(name).shape
            if whole.dim():
                assert sum(len(part) for part in files.chunks(name, 1 + len(whole) // 3)) == len(
                    whole
                )
                files.rows(name, [0] if len(whole) else [])


def shard_seeds() -> list[bytes]:
    made = [sharded(base) for base in (bases()[0], bases()[-1])]
    return [pack([one[INDEX], one["a.safetensors"], one["b.safetensors"]]) for one in made]


def folder(data: bytes) -> Path:
    config, raw = unpack(data, 2)
    home = Path("net")
    home.mkdir(exist_ok=True)
    (home / "config.json").write_bytes(config)
    (home / SINGLE).write_bytes(raw)
    return home


def folder_seeds() -> list[bytes]:
    return [pack([base.beside.get("config.json", b""), base.raw]) for base in bases()]


def checkpoint(data: bytes) -> None:
    read_all(folder(data))


def fingerprint(data: bytes) -> None:
    FingerprintTask(("all", "first,last")[len(data) % 2]).read(str(folder(data)))


def inspect(data: bytes) -> None:
    with Checkpoint(folder(data)) as opened:
        inspect_checkpoint(opened)


@lru_cache
def fixed(number: int) -> Checkpoint:
    """A sound checkpoint that inputs are held against."""
    home = Path(f"fixed-{number}").absolute()
    home.mkdir(exist_ok=True)
    base = bases()[number]
    for name, content in {SINGLE: base.raw, **base.beside}.items():
        (home / name).write_bytes(content)
    return Checkpoint(home)


def certificate(data: bytes) -> None:
    """For each of three checkpoints: read, and applied as `tnfn apply` does."""
    path = Path("g.safetensors")
    path.write_bytes(data)

    def use(number: int) -> None:
        element, _ = load_certificate(path, fixed(number))
        Path("applied.safetensors").unlink(missing_ok=True)
        apply_element(fixed(number), element, Path("applied.safetensors"))

    any_of(use, (0, 3, 5))


def verification(data: bytes) -> None:
    """Of a checkpoint with itself, as `tnfn verify` does."""
    path = Path("v.safetensors")
    path.write_bytes(data)
    any_of(lambda number: verify(path, fixed(number), fixed(number), seed=0), (0, 3, 5))


def verification_seeds() -> list[bytes]:
    made = []
    for number in (0, 3, 5):
        net = fixed(number)
        save_certificate(NetElement.identity(net.spec, net.blocks), net, net, "v.safetensors")
        made.append(Path("v.safetensors").read_bytes())
    return made


def certificate_seeds() -> list[bytes]:
    made = []
    for number in (0, 3, 5):
        generator = torch.Generator().manual_seed(0)
        net = fixed(number)
        save_certificate(random_net_element(net, generator), net, net, "g.safetensors")
        made.append(Path("g.safetensors").read_bytes())
    return made


def compare(data: bytes) -> None:
    with Checkpoint(folder(data)) as opened:
        same(fixed(list(FAMILIES).index(opened.family.name)), opened)


def prints(data: bytes) -> None:
    Fingerprint.from_json(data.decode(errors="replace"))


def print_seeds() -> list[bytes]:
    base = Path("print.safetensors")
    base.write_bytes(bases()[-1].raw)
    found, _ = FingerprintTask().read(str(base))
    short = {**found.to_json(), "parts": {"mlp 0": [0.5] * 16}}
    return [json.dumps(found.to_json()).encode(), json.dumps(short).encode()]


RANKED = NetShape(tokens=4, inputs=5, D=8, heads=2, D_A=6, hidden=3, classes=2)


def ranked(data: bytes) -> None:
    Path("net.safetensors").write_bytes(data)
    read_net(Path("net.safetensors"), RANKED)


def ranked_seeds() -> list[bytes]:
    from safetensors.torch import save

    return [
        save({n: torch.randn(e.shape) for n, e in RANKED.stored.items()}, {"optimizer": "adam"})
    ]


def gguf_header(data: bytes) -> None:
    read_gguf_header(io.BytesIO(data), len(data), "file")


def gguf_checkpoint(data: bytes) -> None:
    """All of its tensors, and the network that it is."""
    path = Path("net.gguf")
    path.write_bytes(data)
    with open_files(path) as files:
        for name in files:
            whole = files.read(name)
            assert tuple(whole.shape) == files.entry(name).shape
            files.rows(name, [0, len(whole) - 1])
    with Checkpoint(path) as found:
        found.block(0)


_OPEN = (CheckpointError,)
_FOLDER = Each(json_text, safetensors)
READERS = [
    Reader(
        "header",
        header,
        _OPEN,
        lambda: [small(), *(b.raw for b in bases())],
        safetensors,
        HEADER,
        420_000,
    ),
    Reader(
        "json",
        lambda data: read_json_object(data, "file"),
        _OPEN,
        lambda: [b'{"a": [1, 2.5, "x", {"b": null}], "c": true}'],
        json_text,
        JSON,
        70_000,
        4096,
    ),
    Reader(
        "config",
        settings,
        _OPEN,
        config_seeds,
        json_text,
        KEYS,
        110_000,
        4096,
    ),
    Reader(
        "index and shards",
        shards,
        _OPEN,
        shard_seeds,
        Each(json_text, safetensors, safetensors),
        (f"{ROOM}files.tensors", f"{ROOM}files.places", *HEADER),
        40_000,
    ),
    Reader(
        "GGUF header",
        gguf_header,
        _OPEN,
        lambda: [made(), small_llama()],
        plain,
        (f"{ROOM}gguf.header",),
        160_000,
    ),
    Reader(
        "GGUF",
        gguf_checkpoint,
        _OPEN,
        lambda: [small_llama()],
        plain,
        (f"{ROOM}gguf.header", f"{ROOM}gguf.files"),
        40_000,
    ),
    Reader("checkpoint", checkpoint, _OPEN, folder_seeds, _FOLDER, (*OPENING, *SOUNDNESS), 40_000),
    Reader(
        "fingerprint",
        fingerprint,
        _OPEN,
        folder_seeds,
        _FOLDER,
        tuple(
            KINSHIP + n for n in ("fingerprinting", "probes", "blockfunction", "outsidefunction")
        ),
        12_000,
    ),
    Reader("inspect", inspect, _OPEN, folder_seeds, _FOLDER, (f"{IDENTITY}inspection",), 4_000),
    Reader(
        "same",
        compare,
        _OPEN,
        folder_seeds,
        _FOLDER,
        (
            f"{IDENTITY}verdict",
            f"{ELEMENTS}canonical",
            f"{IDENTITY}matching.networks",
            f"{IDENTITY}running.witness",
            f"{IDENTITY}running.function",
        ),
        500,
        seconds=30.0,  # it computes, within a budget
    ),
    Reader(
        "certificate",
        certificate,
        _OPEN,
        certificate_seeds,
        safetensors,
        (
            f"{ELEMENTS}certificate:load_certificate,_terms,_digests,_table",
            *(ELEMENTS + n for n in ("table", "check", "readback", "applying")),
        ),
        12_000,
    ),
    Reader(
        "verify",
        verification,
        _OPEN,
        verification_seeds,
        safetensors,
        tuple(IDENTITY + n for n in ("verification", "comparing.judge")),
        1_000,
        seconds=30.0,  # it computes
    ),
    Reader(
        "fingerprint JSON",
        prints,
        _OPEN,
        print_seeds,
        json_text,
        (f"{KINSHIP}fingerprinting:from_json,_are_numbers", *JSON),
        40_000,
    ),
    Reader(
        "net to rank",
        ranked,
        (BenchError,),
        ranked_seeds,
        safetensors,
        ("transformer_nfn.bench.ranking:read_net,check_net",),
        20_000,
    ),
]
