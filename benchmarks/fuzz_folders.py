"""What is fuzzed of manifests, folders of results, zoos, saved models and benchmarks."""

import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.fuzz_engine import Reader
from benchmarks.fuzz_mutate import (
    Mutator,
    each,
    json_text,
    lines,
    pack,
    parquet,
    safetensors,
    unpack,
)
from tests.bench.small import SHAPE, small_examples, three_parts
from transformer_nfn.bench import BenchError, load_predictor
from transformer_nfn.bench.cells import finished_cells
from transformer_nfn.bench.data import Divided
from transformer_nfn.bench.forest import Forest
from transformer_nfn.bench.kernel import KernelRegression
from transformer_nfn.bench.predictor import Predictor
from transformer_nfn.bench.registry import MODELS, model_named
from transformer_nfn.bench.saved import save_predictor
from transformer_nfn.bench.splits import SPLITS, stored_splits
from transformer_nfn.hub import FingerprintTask, HubError, Results, stored_fingerprints
from transformer_nfn.hub.manifests import read_manifest
from transformer_nfn.hub.store import COLUMNS as ROWS
from transformer_nfn.identity import WIDTH, group_copies
from transformer_nfn.models import (
    FlatMLP,
    FlatMLPConfig,
    ModelFileError,
    NFNConfig,
    StatNN,
    StatNNConfig,
    TransformerNFN,
    load_model,
    save_model,
)  # fmt: skip
from transformer_nfn.zoo import Recipe, RecipeError, StoreError, summarize, verify
from transformer_nfn.zoo.dataset import Zoo
from transformer_nfn.zoo.schema import zoo_table

HUB, ZOO, BENCH = "transformer_nfn.hub.", "transformer_nfn.zoo.", "transformer_nfn.bench."


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
    seeds: dict[str, tuple[list[bytes], Mutator, int]] = {
        ".txt": ([b"a.safetensors\nhttps://host/b.safetensors\n\n/c"], lines, 20_000),
        ".csv": ([comma.encode(), b'path\n"a b"\n'], lines, 30_000),
        ".jsonl": (["\n".join(map(json.dumps, rows)).encode(), b'{"path": "a"}'], lines, 30_000),
        ".parquet": (
            [parquet_bytes(table), parquet_bytes(table.select(["path"]))],
            parquet,
            30_000,
        ),
    }
    return [
        Reader(
            f"manifest {ending}", partial(manifest, ending), (HubError,), lambda made=made: made[0],
            made[1], (f"{HUB}manifests",), made[2], 4096,
        )
        for ending, made in seeds.items()
    ]  # fmt: skip


# ----------------------------------------------------------------------------- hub and zoo


def results(data: bytes) -> None:
    """hub.json and a shard, as `tnfn dedup FOLDER` reads them."""
    described, shard = unpack(data, 2)
    Path("hub/data").mkdir(parents=True, exist_ok=True)
    Path("hub/hub.json").write_bytes(described)
    Path("hub/data/000001-a.parquet").write_bytes(shard)
    found = Results("hub")
    assert found.next_run > 0
    group_copies(stored_fingerprints(found), {}).table()


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
    """zoo.json, a shard, the log of a build and the splits, as `tnfn zoo info`, `verify` and `bench`."""
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
    log = json.dumps({"started": "2026-01-01", "seconds": 1.0, "runs": 3}).encode()
    splits = {"format": 1, "column": "fold", "splits": [s._asdict() for s in SPLITS]}
    described = [{"format": 1, "source": {"name": "x"}}, {"format": 1, "recipe": recipe}]
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


# ---------------------------------------------------------------------- models and benchmarks


def model(data: bytes) -> None:
    Path("model.safetensors").write_bytes(data)
    load_model("model.safetensors")


def model_seeds() -> list[bytes]:
    net = small_examples(2).nets()
    made = [
        TransformerNFN(NFNConfig.of(SHAPE.spec, blocks=2, channels=(2,), seed=0)),
        FlatMLP(FlatMLPConfig.of(net, hidden=2, seed=5)),
        StatNN(StatNNConfig.of(net, hidden=3, embedding_hidden=2, seed=5)),
    ]
    found = []
    for one in made:
        save_model(one, "model.safetensors")
        found.append(Path("model.safetensors").read_bytes())
    return found


def files_of(folder: Path, names: list[str]) -> list[bytes]:
    return [(folder / name).read_bytes() for name in names]


PREDICTOR = ["predictor.json", "guard.safetensors", "trees.safetensors"]


def predictor(data: bytes) -> None:
    for name, content in zip(PREDICTOR, unpack(data, 3), strict=True):
        Path("saved").mkdir(exist_ok=True)
        Path("saved", name).write_bytes(content)
    load_predictor(Path("saved"))


def predictor_seeds() -> list[bytes]:
    """A forest without the library that grows one: two leaves."""
    train, validation, test = three_parts(small_examples(20))
    name = next(n for n, kind in MODELS.items() if n.startswith("statistics") or n == "invariants")
    made: Predictor = model_named(name).predictor(seed=0, tokens=4)
    grown = Forest(*(np.array(a) for a in ([1, -1, -1], [2, -1, -1], [0, 0, 0])),
                   *(np.array(a) for a in ([0.5, 0, 0], [0.0, 1, 2])), np.array([0]))  # fmt: skip
    made._forest, made._width = grown, 10  # type: ignore[attr-defined]
    record = {"split": 0, "zoo": "z", "track": "shared", "train_rows": 1, "validation_rows": 1}
    record |= {"tau": 0.5, "tau_moved": 0.5, "parameters": None, "fit_seconds": 1.0}
    save_predictor(made, name, Divided(train, validation, test), record, Path("saved"))
    return [pack(files_of(Path("saved"), PREDICTOR))]


def kernel(data: bytes) -> None:
    Path("kernel.safetensors").write_bytes(data)
    KernelRegression.load(Path("kernel.safetensors"))


def kernel_seeds() -> list[bytes]:
    arrays = [np.zeros(3), np.ones(3), np.ones((2, 3)), np.ones(2), np.ones(2)]
    KernelRegression(*arrays).save(Path("kernel.safetensors"))
    return [Path("kernel.safetensors").read_bytes()]


def cells(data: bytes) -> None:
    home = Path("bench/cells")
    home.mkdir(parents=True, exist_ok=True)
    (home / "a.parquet").write_bytes(data)
    finished_cells("bench")


def cell_seeds() -> list[bytes]:
    chosen = three_parts(small_examples(10))[2].table
    table = chosen.select(["run", "run_id", "checkpoint", "epoch", "test_accuracy"])
    for name in ("predicted", "moved"):
        table = table.append_column(name, pa.array(np.linspace(0, 1, len(table))))
    record = {
        "model": "statnn",
        "settings": dict(MODELS["statnn"].settings),
        "zoo": "z",
        "split": 0,
    }
    record |= {
        "track": "shared",
        "task": "digits",
        "runs": None,
        "checkpoints": "epochs",
        "tau": 0.5,
    }
    record |= {
        "thresholds": [["none", 0.0]],
        "folder": "z",
        "zoo_runs": 10,
        "tau_moved": 0.5,
        "seed": 0,
    }
    record |= {"augment": None, "threshold": None, "train_runs": None, "test_zoo": None, "epoch": 3}
    record |= {"parameters": 5, "fit_seconds": 1.0, "fit_peak_bytes": 5, "predict_seconds": 1.0}
    record |= {
        "predict_peak_bytes": 5,
        "train_rows": 5,
        "validation_rows": 5,
        "test_rows": len(table),
    }
    record |= {"versions": {}, "tau_validation": 0.5}
    metadata = {b"transformer_nfn.bench": json.dumps(record).encode()}
    return [parquet_bytes(table.replace_schema_metadata(metadata))]


def fresh(*names: str) -> None:
    for name in names:
        shutil.rmtree(name, ignore_errors=True)


READERS = [
    *manifest_readers(),
    Reader(
        "results folder", results, (HubError,), result_seeds, each(json_text, parquet),
        (f"{HUB}store", f"{HUB}fingerprint_task"), 15_000, 2**16,
    ),
    Reader(
        "zoo folder", zoo, (StoreError, BenchError, RecipeError), zoo_seeds,
        each(json_text, parquet, json_text, json_text),
        tuple(ZOO + n for n in ("dataset", "ownership", "schema", "summary", "verification")), 6_000, 2**17,
    ),
    Reader("recipe", recipe, (RecipeError,), recipe_seeds, lines, (f"{ZOO}recipe",), 25_000, 2**13),
    Reader(
        "saved model", model, (ModelFileError,), model_seeds, safetensors,
        ("transformer_nfn.models.storage",), 10_000, 2**17,
    ),
    Reader(
        "saved predictor", predictor, (BenchError, ModelFileError), predictor_seeds,
        each(json_text, safetensors, safetensors),
        tuple(BENCH + n for n in ("saved", "guard", "forest")), 20_000, 2**16,
    ),
    Reader("kernel", kernel, (BenchError,), kernel_seeds, safetensors, (f"{BENCH}kernel",), 20_000),
    Reader("cells", cells, (BenchError,), cell_seeds, parquet, (f"{BENCH}cells",), 10_000, 2**16),
]  # fmt: skip
