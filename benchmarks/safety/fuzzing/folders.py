"""What is fuzzed of manifests, folders of results, zoos and their recipes."""

import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.safety.fuzzing.engine import Reader
from benchmarks.safety.fuzzing.mutate import (
    Each,
    Mutator,
    json_text,
    lines,
    pack,
    parquet,
    unpack,
)
from tests.bench.small import SHAPE, small_examples
from transformer_nfn.bench import BenchError
from transformer_nfn.bench.protocol.splits import SPLITS, stored_splits
from transformer_nfn.hub import FingerprintTask, HubError, Results, load_forest, stored_index
from transformer_nfn.hub.manifests import read_manifest
from transformer_nfn.hub.store import COLUMNS as ROWS
from transformer_nfn.kinship import WIDTH, group_copies
from transformer_nfn.zoo import Recipe, RecipeError, StoreError, summarize, verify
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.finished.card import card_text
from transformer_nfn.zoo.format.schema import FORMAT, zoo_table

HUB, ZOO, BENCH = "transformer_nfn.hub.", "transformer_nfn.zoo.", "transformer_nfn.bench."
TABLES = (
    "transformer_nfn.jobs.tables",
    "transformer_nfn.jobs.folder:read,metadata,read_json,_parquet",
)
ZOOS = (
    *TABLES,
    f"{ZOO}dataset:shape,table,rows,_read,read_shard,names,name",
    f"{ZOO}format.ownership:read_description",
    f"{ZOO}format.schema:read_shape,check_columns,_are_weights,weight_matrix,chosen_rows,row_digest",
    f"{ZOO}finished.summary",
    f"{ZOO}finished.verification",
    f"{BENCH}protocol.splits:stored_splits",
)


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


# ---------------------------------------------------------------------------------- manifests


def manifest(ending: str, data: bytes) -> None:
    path = Path(f"manifest{ending}")
    path.write_bytes(data)
    read_manifest(str(path.absolute()))


def manifest_readers() -> list[Reader]:
    table = pa.table(
        {"path": ["a.safetensors", "s3://b/c"], "size": [1, 2], "version": ["1:2", "x"]}
    )
    rows = table.to_pylist()
    comma = "path,size,version\n" + "\n".join(",".join(map(str, row.values())) for row in rows)
    seeds: dict[str, tuple[list[bytes], Mutator, int, str]] = {
        ".txt": (
            [b"a.safetensors\nhttps://host/b.safetensors\n\n/c", b"zip://a::b"],
            lines,
            50_000,
            "",
        ),
        ".csv": ([comma.encode(), b'path\n"a b"\n'], lines, 30_000, ""),
        ".jsonl": (
            ["\n".join(map(json.dumps, rows)).encode(), b'{"path": "a"}'],
            lines,
            30_000,
            ",_json_lines",
        ),
        ".parquet": (
            [parquet_bytes(table), parquet_bytes(table.select(["path"]))],
            parquet,
            30_000,
            ",_check_text",
        ),
    }
    return [
        Reader(
            f"manifest {ending}",
            partial(manifest, ending),
            (HubError,),
            lambda made=made: made[0],
            made[1],
            (f"{HUB}manifests:read_manifest,_read,_absolute,_check{made[3]}",),
            made[2],
            4096,
        )
        for ending, made in seeds.items()
    ]


# ----------------------------------------------------------------------------- hub and zoo


def results(data: bytes) -> None:
    """hub.json and a shard, as `tnfn dedup FOLDER` reads them."""
    described, shard = unpack(data, 2)
    Path("hub/data").mkdir(parents=True, exist_ok=True)
    Path("hub/hub.json").write_bytes(described)
    Path("hub/data/000001-a.parquet").write_bytes(shard)
    found = Results("hub")
    assert found.next_run > 0
    group_copies(stored_index(found), {}).table()


def kin(data: bytes) -> None:
    """The kin beside sound fingerprints: what is no forest is made anew."""
    described, shard = unpack(result_seeds()[0], 2)
    Path("kin/data").mkdir(parents=True, exist_ok=True)
    Path("kin/hub.json").write_bytes(described)
    Path("kin/data/000001-a.parquet").write_bytes(shard)
    Path("kin/links.pq").write_bytes(data)
    found = Results("kin")
    index, known = stored_index(found), load_forest(found)
    group_copies(index, forest=index.forest(known)).table()
    if not known.keys:
        raise HubError("kin are sought anew")  # which counts as refused


def kin_seeds() -> list[bytes]:
    table = pa.table(
        {
            "first": pa.array([b"a" * 16, b"a" * 16, b"b" * 16], pa.binary(16)),
            "second": pa.array([b"b" * 16, None, None], pa.binary(16)),
            "distance": [0.1, None, None],
            "copies": [False, None, None],
        }
    )
    return [parquet_bytes(table, compression="none", use_dictionary=False)]


def result_seeds() -> list[bytes]:
    numbers = np.linspace(0, 1, 2 * WIDTH)
    rows = [
        {
            "path": f"/{name}",
            "version": "1",
            "size": 5,
            "status": status,
            "bytes_read": 5,
            "seconds": 0.1,
        }
        | {
            "family": "gpt2",
            "shape": "gpt2 l=1",
            "dtype": "float32",
            "parts": ["mlp 0", "embedding"],
        }
        | {"numbers": numbers}
        for name, status in (("a", "ok"), ("b", "ok"), ("c", "broken"))
    ]
    table = pa.Table.from_pylist(rows, pa.schema([*ROWS, *FingerprintTask().schema]))
    described = {"format": 1, "task": FingerprintTask().description, "versions": {}}
    raw = parquet_bytes(table, use_dictionary=False, compression="none")
    return [pack([json.dumps(described).encode(), raw])]


def zoo(data: bytes) -> None:
    """zoo.json, a shard, a build's log and splits: as `tnfn zoo info`, `verify` and `bench`."""
    described, shard, log, splits = unpack(data, 4)
    for name in ("data", "builds"):
        Path("zoo", name).mkdir(parents=True, exist_ok=True)
    Path("zoo/zoo.json").write_bytes(described)
    Path("zoo/data/a.parquet").write_bytes(shard)
    Path("zoo/builds/a.json").write_bytes(log)
    Path("zoo/splits.json").write_bytes(splits)
    refused: Exception | None = None
    uses: list[Callable[[Zoo], object]] = [
        summarize,
        lambda z: list(verify(z)),
        Zoo.rows,
        card_text,
        stored_splits,
    ]
    opened = Zoo("zoo")
    for use in uses:
        try:
            use(opened)
        except (StoreError, BenchError) as error:
            refused = error
    if refused:
        raise refused


def zoo_seeds() -> list[bytes]:
    examples = small_examples(3, epochs=(1,))
    table = zoo_table(SHAPE, examples.table.to_pylist(), list(examples.weights.numpy()))
    recipe = Recipe.load("digits-mini").model_dump(mode="json")
    log = json.dumps(
        {"started": "", "wall_seconds": 1.0, "worker_seconds": 1.0, "workers": 1}
    ).encode()
    splits = {"format": 1, "column": "fold", "splits": [s._asdict() for s in SPLITS]}
    described = [{"format": FORMAT, "source": {"name": "x"}}, {"format": FORMAT, "recipe": recipe}]
    shard = parquet_bytes(table, use_dictionary=False, compression="none")
    return [
        pack([json.dumps(d).encode(), shard, log, json.dumps(splits).encode()]) for d in described
    ]


def recipe(data: bytes) -> None:
    Path("recipe.toml").write_bytes(data)
    Recipe.load("recipe.toml")


def recipe_seeds() -> list[bytes]:
    from importlib import resources

    home = resources.files("transformer_nfn.zoo.recipes")
    return [home.joinpath(f"{name}.toml").read_bytes() for name in ("digits-mini", "agnews-small")]


READERS = [
    *manifest_readers(),
    Reader(
        "results folder",
        results,
        (HubError,),
        result_seeds,
        Each(json_text, parquet),
        (
            f"{HUB}store:_described,_read,rows,newest,_names,next_run",
            *TABLES,
            f"{HUB}stored:stored_index,_check_numbers,_stack",
        ),
        15_000,
        2**16,
    ),
    Reader(
        "kin", kin, (HubError,), kin_seeds, parquet, (f"{HUB}stored:load_forest",), 5_000, 2**16
    ),
    Reader(
        "zoo folder",
        zoo,
        (StoreError, BenchError, RecipeError),
        zoo_seeds,
        Each(json_text, parquet, json_text, json_text),
        ZOOS,
        6_000,
        2**17,
    ),
    Reader(
        "recipe",
        recipe,
        (RecipeError,),
        recipe_seeds,
        lines,
        (f"{ZOO}recipe:load,_possible,combinations,_consistent,_grid,shape",),
        25_000,
        2**13,
    ),
]
