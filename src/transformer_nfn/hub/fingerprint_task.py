"""Fingerprints as bulk work, and back from their rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import torch

from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.store import Results
from transformer_nfn.identity import SEED, WIDTH, Fingerprint, check_choice, fingerprint

#: What one worker allows a file that nobody has looked at: bytes read at once, and the longest
#: axis of a tensor. Sound networks need a few MB, and have axes below 2**20; with these a worker
#: stays below `MEMORY`, whatever a header says.
LARGEST_READ = 2**27
LONGEST_AXIS = 2**22
MEMORY = 2**31


@dataclass(frozen=True)
class FingerprintTask:
    """The fingerprint of each file.

    Attributes:
        blocks: Which blocks are read, see `fingerprint`.
    """

    blocks: str = "all"

    def __post_init__(self) -> None:
        check_choice(self.blocks)

    @property
    def description(self) -> dict[str, Any]:
        """Its name and settings."""
        return {"name": "fingerprint", "blocks": self.blocks, "seed": SEED}

    @property
    def schema(self) -> pa.Schema:
        """Columns: `numbers` are 16 for each of `parts`, one after the other."""
        return pa.schema(
            {
                "family": pa.string(),
                "shape": pa.string(),
                "dtype": pa.string(),
                "parts": pa.list_(pa.string()),
                "numbers": pa.list_(pa.float64()),
            }
        )

    def read(self, path: str) -> tuple[Fingerprint, int]:
        """The fingerprint of a file, and the bytes that it took."""
        with Checkpoint(path) as checkpoint:
            longest = max(max(e.shape, default=0) for e in checkpoint.files.entries.values())
            if longest > LONGEST_AXIS:
                raise CheckpointError(
                    f"{path} has an axis of {longest}; bulk work reads at most {LONGEST_AXIS}"
                )
            checkpoint.files.largest_read = LARGEST_READ
            found = fingerprint(checkpoint, blocks=self.blocks)
            return found, checkpoint.files.bytes_read

    def columns(self, found: Sequence[Fingerprint]) -> list[dict[str, Any]]:
        """A row for each."""
        return [
            {
                "family": one.shape.partition(" ")[0],
                "shape": one.shape,
                "dtype": one.dtype,
                "parts": list(one.parts),
                "numbers": torch.stack(list(one.parts.values())).flatten().numpy(),
            }
            for one in found
        ]


def stored_fingerprints(results: Results, listing: pa.Table | None = None) -> list[Fingerprint]:
    """The fingerprints of a folder of results, sorted by path.

    Args:
        results: Where they are.
        listing: Only what is there now; None for all that was ever read.

    Raises:
        HubError: If the folder holds other results.
    """
    if results.task.get("name") != "fingerprint":
        raise HubError(f"{results.url} holds {results.task.get('name')} results, not fingerprints")
    columns = ["status", "shape", "dtype", "parts", "numbers"]
    table = results.rows(columns, FingerprintTask().schema)
    chosen = pc.equal(table["status"], "ok")
    if listing is not None:
        chosen = pc.and_(chosen, pc.is_in(table["path"], listing["path"].combine_chunks()))
    table = table.filter(chosen).sort_by("path")
    _check_numbers(table, results.url)
    return list(_from_rows(table))


def _check_numbers(table: pa.Table, url: str) -> None:
    """16 finite numbers for each of at least one part."""
    parts, numbers = table["parts"], table["numbers"]
    counts = pc.multiply(pc.list_value_length(parts), WIDTH)
    fits = pc.and_(pc.greater(counts, 0), pc.equal(counts, pc.list_value_length(numbers)))
    sound = pc.all(fits, skip_nulls=False).as_py()
    for column in (table["shape"], table["dtype"], parts, numbers, pc.list_flatten(parts)):
        sound = sound and not column.null_count
    sound = sound and pc.all(pc.is_finite(pc.list_flatten(numbers)), skip_nulls=False).as_py()
    if len(table) and not sound:
        raise HubError(f"{url} has rows that are no fingerprints; delete the folder, and run again")


def _from_rows(table: pa.Table) -> Iterator[Fingerprint]:
    for batch in table.to_batches():
        numbers = batch["numbers"]
        offsets = numbers.offsets.to_numpy()
        values = torch.from_numpy(np.array(numbers.values.to_numpy())).view(-1, WIDTH)
        rows = zip(
            *(batch[name].to_pylist() for name in ("path", "shape", "dtype", "parts")),
            offsets[:-1] // WIDTH,
            offsets[1:] // WIDTH,
            strict=True,
        )
        for path, shape, dtype, parts, start, end in rows:
            named = dict(zip(parts, values[start:end], strict=True))
            yield Fingerprint(path, shape, dtype, named)
