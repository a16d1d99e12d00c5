"""What is fuzzed of saved models, predictors and finished cells of a benchmark."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.safety.fuzzing.engine import Reader
from benchmarks.safety.fuzzing.folders import TABLES, parquet_bytes
from benchmarks.safety.fuzzing.mutate import (
    Each,
    json_text,
    pack,
    parquet,
    safetensors,
    unpack,
)
from tests.bench.small import SHAPE, small_examples, three_parts
from transformer_nfn.bench import BenchError, load_predictor
from transformer_nfn.bench.examples import Divided
from transformer_nfn.bench.models.predictor import Predictor
from transformer_nfn.bench.models.registry import MODELS, model_named
from transformer_nfn.bench.models.regression.forest import Forest
from transformer_nfn.bench.models.regression.kernel import KernelRegression
from transformer_nfn.bench.models.regression.readers import Readers
from transformer_nfn.bench.models.saved import save_predictor
from transformer_nfn.bench.protocol.computing import finished_cells
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
)

BENCH = "transformer_nfn.bench."


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


PREDICTOR = ["predictor.json", "guard.safetensors", "trees.safetensors", "kernel.safetensors"]


def predictor(data: bytes) -> None:
    for name, content in zip(PREDICTOR, unpack(data, len(PREDICTOR)), strict=True):
        Path("saved").mkdir(exist_ok=True)
        Path("saved", name).write_bytes(content)
    load_predictor(Path("saved"))


def predictor_seeds() -> list[bytes]:
    """A forest without the library that grows one: two leaves."""
    train, validation, test = three_parts(small_examples(20))
    name = next(n for n, kind in MODELS.items() if n.startswith("statistics") or n == "invariants")
    networks = {"task": "t", "track": "shared"}
    made: Predictor = model_named(name).predictor(seed=0, tokens=4, **networks)
    grown = Forest(
        *(np.array(a) for a in ([1, -1, -1], [2, -1, -1], [0, 0, 0])),
        *(np.array(a) for a in ([0.5, 0, 0], [0.0, 1, 2])),
        np.array([0]),
    )
    rows = np.ones((2, 10), dtype=np.float32)
    smooth = KernelRegression(np.zeros(10), np.ones(10), rows, np.ones(2), np.ones(2))
    made._readers = Readers(grown, smooth)  # type: ignore[attr-defined]
    record = {**networks, "split": 0, "zoo": "z", "train_rows": 1, "validation_rows": 1}
    record |= {"tau": 0.5, "tau_moved": 0.5, "parameters": None, "fit_seconds": 1.0, "fit_seed": 0}
    with tempfile.TemporaryDirectory() as folder:
        save_predictor(made, name, Divided(train, validation, test), record, Path(folder))
        return [pack(files_of(Path(folder), PREDICTOR))]


def kernel(data: bytes) -> None:
    Path("kernel.safetensors").write_bytes(data)
    KernelRegression.load(Path("kernel.safetensors"))


def kernel_seeds() -> list[bytes]:
    rows = np.ones((2, 3), dtype=np.float32)
    arrays = [np.zeros(3), np.ones(3), rows, np.ones(2), np.ones(2)]
    KernelRegression(*arrays).save(Path("kernel.safetensors"))
    return [Path("kernel.safetensors").read_bytes()]


def cells(data: bytes) -> None:
    home = Path("bench/cells")
    home.mkdir(parents=True, exist_ok=True)
    (home / "a.parquet").write_bytes(data)
    finished_cells("bench")


def cell_seeds() -> list[bytes]:
    chosen = three_parts(small_examples(10))[2].table
    table = chosen.select(["run", "run_id", "twins", "checkpoint", "epoch", "test_accuracy"])
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
        "data": "0" * 64,
        "tau_moved": 0.5,
        "seed": 0,
    }
    record |= {"augment": None, "threshold": None, "train_runs": None, "test_zoo": None, "epoch": 3}
    record |= {"parameters": 5, "fit_seconds": 1.0, "predict_seconds": 1.0}
    record |= {"train_rows": 5, "validation_rows": 5, "test_rows": len(table)}
    record |= {"versions": {}, "tau_validation": 0.5}
    metadata = {b"transformer_nfn.bench": json.dumps(record).encode()}
    return [parquet_bytes(table.replace_schema_metadata(metadata))]


READERS = [
    Reader(
        "saved model",
        model,
        (ModelFileError,),
        model_seeds,
        safetensors,
        (
            "transformer_nfn.models.storage:load_model,_wanted_shapes,_limited,_kind_and_config,_compare",
        ),
        10_000,
        2**17,
    ),
    Reader(
        "saved predictor",
        predictor,
        (BenchError, ModelFileError),
        predictor_seeds,
        Each(json_text, safetensors, safetensors, safetensors),
        (
            f"{BENCH}models.saved:load_predictor,is_saved",
            f"{BENCH}models.guard:load",
            f"{BENCH}models.regression.forest:load,check,_from_arrays",
        ),
        20_000,
        2**16,
    ),
    Reader(
        "kernel",
        kernel,
        (BenchError,),
        kernel_seeds,
        safetensors,
        (f"{BENCH}models.regression.kernel:load",),
        20_000,
    ),
    Reader(
        "cells",
        cells,
        (BenchError,),
        cell_seeds,
        parquet,
        (f"{BENCH}protocol.computing:finished_cells", f"{BENCH}protocol.record", *TABLES),
        10_000,
        2**16,
    ),
]
