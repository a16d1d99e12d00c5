"""What is fuzzed of a zoo's data: images, articles, word vectors, and the published zoo."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from benchmarks.safety.fuzzing.engine import Reader, any_of
from benchmarks.safety.fuzzing.folders import parquet_bytes
from benchmarks.safety.fuzzing.mutate import lines, parquet, plain
from transformer_nfn.zoo import DataError, NetShape, StoreError
from transformer_nfn.zoo.published.metadata import read_metadata
from transformer_nfn.zoo.published.nets import published_row, read_state
from transformer_nfn.zoo.tasks import ag_news, mnist
from transformer_nfn.zoo.tasks.idx import read_idx
from transformer_nfn.zoo.tasks.wordvectors import read_vectors

ZOO, TASKS = "transformer_nfn.zoo.", "transformer_nfn.zoo.tasks."
SHAPE = NetShape(tokens=4, inputs=4, D=4, heads=2, D_A=3, blocks=1, hidden=2, classes=2)


def idx(data: bytes) -> None:
    """Plain, and gzipped where it looks like it."""
    path = Path("images.gz" if data[:2] == b"\x1f\x8b" else "images")
    path.write_bytes(data)
    read_idx(path, (3, 2))


def idx_seeds() -> list[bytes]:
    raw = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2]) + bytes(range(12))
    return [raw, gzip.compress(raw, mtime=0)]


def articles(data: bytes) -> None:
    Path("train.csv").write_bytes(data)
    ag_news._from_csv(Path("train.csv"))


def vectors(data: bytes) -> None:
    Path("vectors.bin").write_bytes(data)
    read_vectors(Path("vectors.bin"))


def vector_seeds() -> list[bytes]:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    words = zip((b"a", b"the", "é".encode()), rows, strict=True)
    return [b"3 2\n" + b"".join(word + b" " + row.tobytes() + b"\n" for word, row in words)]


def hub_tables(data: bytes) -> None:
    """The Parquet files of both tasks as the hub has them."""
    path = Path("hub.parquet")
    path.write_bytes(data)
    any_of(lambda read: read(path), (mnist._from_parquet, ag_news._from_parquet))


def hub_seeds() -> list[bytes]:
    from PIL import Image

    png = io.BytesIO()
    Image.new("L", (28, 28), 7).save(png, "PNG")
    image = [{"bytes": png.getvalue(), "path": "a"}] * 2
    tables = [{"image": image, "label": [3, 4]}, {"text": ["a b", "c"], "label": [0, 3]}]
    return [parquet_bytes(pa.table(table)) for table in tables]


def published_table(data: bytes) -> None:
    Path("published/metadata").mkdir(parents=True, exist_ok=True)
    Path("published/metadata/mnist.csv").write_bytes(data)
    read_metadata(Path("published"), "mnist")


def published_seeds() -> list[bytes]:
    columns = (
        "ckpt_epoch,ckpt_file,seed,optimizer,lr,l2_regularize,dropout,w_init_std,train_fraction"
    )
    rows = [f"{n},mnist/ab{n}_{n}_0.pt,42,adam,0.001,0.01,0.1,0.2,1.0,0.{n}" for n in (25, 50)]
    return ["\n".join([f"{columns},test_top1_accuracy", *rows]).encode()]


def published_net(data: bytes) -> None:
    Path("published/mnist").mkdir(parents=True, exist_ok=True)
    Path("published/mnist/a_1_0.pt").write_bytes(data)
    published_row(read_state(Path("published"), "mnist", "mnist/a_1_0.pt"), SHAPE)


def net_seeds() -> list[bytes]:
    from transformer_nfn.zoo.published.nets import _published

    state: dict[str, Any] = {
        key: torch.randn(size)
        for key, size in (_published(name, dims) for name, (_, dims) in SHAPE.stored.items())
    }
    made = []
    for legacy in (False, True):
        sink = io.BytesIO()
        # The published files are pickles; this is what the import meets.
        torch.save(state, sink, _use_new_zipfile_serialization=not legacy)  # noqa: TID251
        made.append(sink.getvalue())
    return made


_DATA, _STORE = (DataError,), (StoreError,)
READERS = [
    Reader("idx", idx, _DATA, idx_seeds, plain, (f"{TASKS}idx",), 40_000, 2048),
    Reader(
        "articles",
        articles,
        _DATA,
        lambda: [b'"3","Title","Some ""text"", more"\n"1","a","b"\n'],
        lines,
        (f"{TASKS}ag_news:_from_csv",),
        25_000,
        2048,
    ),
    Reader(
        "word vectors",
        vectors,
        _DATA,
        vector_seeds,
        plain,
        (f"{TASKS}wordvectors:read_vectors,_check_header",),
        20_000,
        2048,
    ),
    Reader(
        "hub tables",
        hub_tables,
        _DATA,
        hub_seeds,
        parquet,
        (
            f"{TASKS}parquet",
            f"{TASKS}mnist:_from_parquet,_decode",
            f"{TASKS}ag_news:_from_parquet",
            "transformer_nfn.jobs.tables",
        ),
        8_000,
        2**14,
    ),
    Reader(
        "published table",
        published_table,
        _STORE,
        published_seeds,
        lines,
        (f"{ZOO}published.metadata",),
        15_000,
        4096,
    ),
    Reader(
        "published net", published_net, _STORE, net_seeds, plain, (f"{ZOO}published.nets",), 10_000
    ),
]
