"""Rank checkpoints by predicted accuracy."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import torch

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.saved import SavedPredictor
from transformer_nfn.zoo.dataset import AnyShape, StoreError, check_header, read_row

#: What the model that reads no weights needs; `tnfn zoo export` writes it into a file's metadata.
_HYPERPARAMETERS = ("lr", "l2", "dropout", "init_std", "train_fraction", "epoch")


class Ranked(NamedTuple):
    """One file: the predicted accuracy, or why there is none.

    Attributes:
        path: The file.
        predicted: Predicted test accuracy; None if the file could not be read.
        outside: Share of its features outside what was seen in training.
        warning: What is to be said of it, or None.
    """

    path: str
    predicted: float | None
    outside: float | None
    warning: str | None


class Net(NamedTuple):
    """What was read of one file: its flat row of weights, and its metadata."""

    path: str
    row: np.ndarray
    metadata: dict[str, Any]


def checkpoint_files(paths: Iterable[str | Path]) -> list[Path]:
    """Files as they are, and the safetensors files of folders.

    Raises:
        BenchError: If a path does not exist, or nothing is there to rank.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise BenchError(f"{path} does not exist")
        files += sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise BenchError("nothing to rank: these folders hold no .safetensors file")
    return files


def rank_files(model: SavedPredictor, files: Sequence[Path]) -> list[Ranked]:
    """All files, the best first; those that could not be read come last, with the reason."""
    read: list[Net] = []
    failed = []
    for path in files:
        try:
            read.append(Net(str(path), *read_net(path, model.description.shape)))
        except BenchError as error:
            failed.append(Ranked(str(path), None, None, str(error)))
    return sorted(rank_nets(model, read), key=lambda one: -(one.predicted or 0.0)) + failed


def rank_nets(model: SavedPredictor, nets: Sequence[Net]) -> list[Ranked]:
    """What a model says of nets, in their order."""
    if not nets:
        return []
    examples = _examples(nets, model.description)
    predicted, outside = model.predictor.predict(examples), model.guard.outside(examples)
    ranked = []
    for net, value, share in zip(nets, predicted, outside, strict=True):
        warning = None
        if share > model.guard.limit:
            warning = (
                f"unlike the training nets: {100 * share:.0f} % of its {model.guard.features} "
                f"lie outside what was seen (limit {100 * model.guard.limit:.0f} %)"
            )
        ranked.append(Ranked(net.path, float(value), float(share), warning))
    return ranked


def read_net(path: Path, shape: AnyShape) -> tuple[np.ndarray, dict[str, Any]]:
    """The flat row of one file, and its metadata.

    Names and shapes are compared with what the model reads before anything is loaded.

    Raises:
        BenchError: If it is another kind of file, or a net of other sizes.
    """
    try:
        row, metadata = read_row(path, shape)
    except StoreError as error:
        raise BenchError(f"not a net that this model reads: it {error}") from None
    if not row.isfinite().all():
        raise BenchError("has NaN or infinite weights")
    return row.numpy(), dict(metadata)


def check_net(found: Mapping[str, tuple[tuple[int, ...], str]], shape: AnyShape) -> None:
    """Compare names, shapes and dtypes of a file with what a model reads.

    Raises:
        BenchError: If they differ.
    """
    try:
        check_header(found, shape)
    except StoreError as error:
        raise BenchError(f"not a net that this model reads: it {error}") from None


def _examples(read: Sequence[Net], described: Any) -> Examples:
    columns: dict[str, list[Any]] = {"path": [net.path for net in read]}
    if described.model == "hyperparameters":
        try:
            columns["optimizer"] = [net.metadata["optimizer"] for net in read]
            for name in _HYPERPARAMETERS:
                columns[name] = [float(net.metadata[name]) for net in read]
        except (KeyError, ValueError) as error:
            raise BenchError(
                f"this model reads hyperparameters from a file's metadata, and {error} is missing "
                "or no number: choose a model that reads weights"
            ) from error
    weights = torch.from_numpy(np.stack([net.row for net in read]))
    return Examples(pa.table(columns), weights, described.shape)
