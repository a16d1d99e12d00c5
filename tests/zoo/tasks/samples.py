"""Small files in the layout of the real ones, and the mark of tests that need the real ones."""

import gzip
import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from tests.strategies import generator
from transformer_nfn.zoo.tasks import mnist as mnist_module

real_data = pytest.mark.skipif(
    not os.environ.get("TNFN_DATA"),
    reason="needs the real data: set TNFN_DATA to a folder with mnist/, ag_news/, embeddings/",
)


def idx(values: Tensor) -> bytes:
    """The idx file of a tensor of bytes."""
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.dim()]) + sizes + values.numpy().tobytes()


def digits(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random images of MNIST's size, with labels."""
    images = torch.randint(256, (count, 28, 28), generator=generator(seed), dtype=torch.uint8)
    return images, torch.arange(count, dtype=torch.uint8) % 10


def write_mnist(data: Path, train: int = 13, test: int = 11) -> None:
    """The four files, images gzipped and labels not."""
    folder = data / "mnist"
    folder.mkdir(parents=True)
    for name, images, labels in (("train", *digits(train, 0)), ("t10k", *digits(test, 1))):
        (folder / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))


def png(image: Any, mode: str = "L") -> bytes:
    """An image as the hub has it."""
    image_module = pytest.importorskip("PIL.Image")
    buffer = BytesIO()
    image_module.fromarray(np.asarray(image)).convert(mode).save(buffer, format="PNG")
    return buffer.getvalue()


def write_parquet(path: Path, **columns: list[Any]) -> Path:
    """A Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def write_hub_mnist(hub: Path, train: int = 13, test: int = 11) -> None:
    """The two files of the hub, with the images of `write_mnist`."""
    for name, (images, labels) in zip(
        mnist_module.HUB.names, (digits(train, 0), digits(test, 1)), strict=True
    ):
        write_parquet(
            hub / name,
            image=[{"bytes": png(image), "path": None} for image in images.numpy()],
            label=labels.tolist(),
        )


WORDS = ("oil", "cup", "war", "chip", "it's", "7", "the", "goal")

ARTICLES = [
    (1, "War", "the war, THE war"),
    (2, "Cup", "7 goal; it's the cup"),
    (3, "", "oil oil unheardof oil"),
    (4, "Chip", ""),
    (4, "...", "!"),
    (2, "the goal the", "cup goal 7 the war the oil"),
    (1, "chip war", "the oil war"),
]


def write_csv(path: Path, articles: list[tuple[int, str, str]]) -> None:
    """Articles in the layout of AG News."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'"{label}","{title}","{text}"\n' for label, title, text in articles]
    path.write_text("".join(lines), encoding="utf-8")


def write_vectors(path: Path, width: int = 5) -> Tensor:
    """A word2vec binary file with random vectors of `WORDS`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vectors = torch.randn(len(WORDS), width, generator=generator(2))
    lines = [
        word.encode() + b" " + vector.numpy().tobytes() + b"\n"
        for word, vector in zip(WORDS, vectors, strict=True)
    ]
    path.write_bytes(f"{len(WORDS)} {width}\n".encode() + b"".join(lines))
    return vectors


def write_ag_news(data: Path) -> Tensor:
    """Articles and word vectors; the vectors are returned."""
    write_csv(data / "ag_news" / "train.csv", ARTICLES)
    write_csv(data / "ag_news" / "test.csv", ARTICLES[:4])
    return write_vectors(data / "embeddings" / "small.bin")
