"""Make a zoo of a folder of networks."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv
from pydantic import ValidationError

from transformer_nfn.escaping import for_spreadsheet
from transformer_nfn.jobs import ShardFolder
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.ownership import claim, data_url
from transformer_nfn.zoo.format.schema import ROW_GROUP, zoo_table
from transformer_nfn.zoo.gathered.accuracies import Labelled, read_accuracies
from transformer_nfn.zoo.gathered.files import read_header, read_row, shape_of
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.runs import FOLDS, Hyperparameters, content_hash
from transformer_nfn.zoo.tensors import AnyShape

#: Bytes of weights in a shard.
_SHARD = 2**28
#: Columns of a run that nobody knows; documented with the columns.
UNKNOWN: dict[str, Any] = {
    "optimizer": "unknown",
    **dict.fromkeys(("lr", "l2", "dropout", "init_std", "train_fraction"), math.nan),
    "seed": -1,
    "epoch": 0,
}
#: Beside the shards: which row is which file.
FILES = "files.csv"


class Gathered(NamedTuple):
    """What was made.

    Attributes:
        networks: Rows of the zoo.
        runs: Groups of related networks, each on one side of every split.
        diverged: Networks with weights that are not finite: rows without weights.
        unlabelled: Safetensors files right in the folder that the table does not name.
        blocks: Whether blocks are known, or tensors alone.
    """

    networks: int
    runs: int
    diverged: int
    unlabelled: int
    blocks: bool


class _Net(NamedTuple):
    line: Labelled
    digest: str
    finite: bool
    metadata: dict[str, str]
    key: tuple[str, str]  # related networks have the same


def gather(folder: Path, accuracies: Path, out: str | Path) -> Gathered:
    """Make a zoo of safetensors files of one architecture and one size.

    Files that `tnfn zoo export` wrote are the zoo's own nets, with all that is known of them. Of
    others the tensors are taken by name, in float32; all files must have the same.

    A run of this zoo is a group of related networks: those with the same group in the table, else
    the checkpoints of one run if the files say so, else each alone. Its id is a hash of the weights
    in it. Runs are dealt out to the ten folds in the order of these hashes, to the emptiest first.

    Args:
        folder: Where the files are.
        accuracies: A CSV with path, accuracy and perhaps group.
        out: The zoo's folder or URL; made if need be.

    Raises:
        StoreError: If a file cannot be read or differs from the others, two hold the same weights,
            or the folder holds another zoo.
    """
    lines = read_accuracies(accuracies, folder)
    shape = _shape(folder, lines[0])
    nets = [_read(folder, line, shape) for line in lines]
    _refuse_copies(nets)
    rows, ordered = _rows(nets, shape)
    labelled = {line.path for line in lines}
    source = {
        "name": Path(str(out).rstrip("/")).name,
        "kind": "gathered",
        "starts": "independent",
        "task": rows[0]["task"],
        "sha256": content_hash([[row["run_id"], row["test_accuracy"]] for row in rows]),
    }
    claim(ShardFolder(out), {"source": source})
    _write(folder, rows, ordered, shape, out)
    return Gathered(
        networks=len(rows),
        runs=len({row["run"] for row in rows}),
        diverged=sum(not net.finite for net in nets),
        unlabelled=sum(path.name not in labelled for path in folder.glob("*.safetensors")),
        blocks=isinstance(shape, NetShape),
    )


def _shape(folder: Path, line: Labelled) -> AnyShape:
    try:
        return shape_of(read_header(folder / line.path))
    except StoreError as error:
        raise StoreError(f"{folder / line.path} {error}") from None


def _row(folder: Path, line: Labelled, shape: AnyShape) -> tuple[np.ndarray, dict[str, str]]:
    try:
        row, metadata = read_row(folder / line.path, shape)
    except StoreError as error:
        raise StoreError(
            f"{folder / line.path} {error}. All networks of a zoo are of one architecture and size"
        ) from None
    return row.numpy(), metadata


def _read(folder: Path, line: Labelled, shape: AnyShape) -> _Net:
    row, metadata = _row(folder, line, shape)
    digest = hashlib.sha256(np.ascontiguousarray(row, dtype="<f4").tobytes()).hexdigest()
    if line.group:
        key = ("group", line.group)
    elif isinstance(shape, NetShape) and (known := _known(metadata)) is not UNKNOWN:
        # Runs of one configuration stay on one side of a split, as in a zoo that was built.
        fields = {name: known[name] for name in Hyperparameters.model_fields}
        key = ("twins", Hyperparameters.model_validate(fields).twins)
    elif isinstance(shape, NetShape) and metadata.get("run_id"):
        key = ("run", metadata["run_id"])
    else:
        key = ("network", digest)
    return _Net(line, digest, bool(np.isfinite(row).all()), metadata, key)


def _refuse_copies(nets: Sequence[_Net]) -> None:
    """The same weights twice could be trained on and tested."""
    seen: dict[str, str] = {}
    for net in nets:
        if net.digest in seen:
            raise StoreError(
                f"{seen[net.digest]} and {net.line.path} hold the same weights: leave one out of "
                "the table"
            )
        seen[net.digest] = net.line.path


def _rows(nets: Sequence[_Net], shape: AnyShape) -> tuple[list[dict[str, Any]], list[_Net]]:
    """The rows of the zoo and their networks, run by run."""
    runs: dict[tuple[str, str], list[_Net]] = {}
    for net in nets:
        runs.setdefault(net.key, []).append(net)
    by_id = {content_hash(sorted(net.digest for net in run))[:32]: run for run in runs.values()}
    rows, ordered = [], []
    filled = Counter(dict.fromkeys(range(FOLDS), 0))
    for number, run_id in enumerate(sorted(by_id)):
        fold = min(range(FOLDS), key=lambda one: (filled[one], one))
        for place, net in enumerate(by_id[run_id]):
            filled[fold] += 1
            known = _known(net.metadata) if isinstance(shape, NetShape) else UNKNOWN
            rows.append(
                {
                    **known,
                    "run": number,
                    "run_id": run_id,
                    "checkpoint": str(place),
                    "status": "ok" if net.finite else "diverged",
                    "task": _task(nets) if isinstance(shape, NetShape) else "unknown",
                    "block": shape.block if isinstance(shape, NetShape) else "tensors",
                    "twins": content_hash(["gathered", run_id])[:16],
                    "fold": fold,
                    "test_accuracy": net.line.accuracy if net.finite else None,
                    **dict.fromkeys(_NOT_MEASURED),
                }
            )
            ordered.append(net)
    return rows, ordered


_NOT_MEASURED = (
    "train_loss",
    "train_accuracy",
    "validation_accuracy",
    "test_loss",
    "calibration_error",
    "noisy_accuracy",
)


def _known(metadata: dict[str, str]) -> dict[str, Any]:
    """How a net was trained, where its file says all of it."""
    try:
        fields = {name: metadata[name] for name in Hyperparameters.model_fields}
        found = Hyperparameters.model_validate(fields).model_dump()
        seed, epoch = int(metadata["seed"]), int(metadata["epoch"])
    except (KeyError, ValueError, ValidationError):
        return UNKNOWN
    if not (abs(seed) < 2**63 and 0 <= epoch < 2**31):
        return UNKNOWN
    return {**found, "seed": seed, "epoch": epoch}


def _task(nets: Sequence[_Net]) -> str:
    """What all files say they were trained on."""
    said = {net.metadata.get("task", "") for net in nets}
    one = said.pop() if len(said) == 1 else ""
    return one[:60] or "unknown"


def _write(
    folder: Path,
    rows: Sequence[dict[str, Any]],
    nets: Sequence[_Net],
    shape: AnyShape,
    out: str | Path,
) -> None:
    shards, step = ShardFolder(data_url(out)), max(1, _SHARD // (4 * shape.size))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        weights = [
            _row(folder, net.line, shape)[0] if net.finite else None
            for net in nets[start : start + step]
        ]
        digest = content_hash([[row["run_id"], row["checkpoint"]] for row in some])[:12]
        name = f"gathered-{start:06d}-{start + len(some):06d}-{digest}.parquet"
        shards.commit(name, zoo_table(shape, some, weights), row_group_size=ROW_GROUP)
    table = pa.table(
        {
            "run_id": [row["run_id"] for row in rows],
            "checkpoint": [row["checkpoint"] for row in rows],
            "path": [net.line.path for net in nets],
        }
    )
    buffer = pa.BufferOutputStream()
    csv.write_csv(for_spreadsheet(table), buffer)
    ShardFolder(out).replace(FILES, buffer.getvalue().to_pybytes())
