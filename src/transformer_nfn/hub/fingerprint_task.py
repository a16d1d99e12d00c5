"""Fingerprints as bulk work."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import torch

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, TensorFiles, open_files
from transformer_nfn.kinship import SEED, Fingerprint, check_choice, fingerprint, tensor_digest

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
        limit_seconds: Longest time for a file, checked between reads of some MB; one that takes
            longer is `failed`. None for any time.
    """

    blocks: str = "all"
    limit_seconds: float | int | None = None

    def __post_init__(self) -> None:
        check_choice(self.blocks)

    @property
    def description(self) -> dict[str, Any]:
        """Its name and settings."""
        return {"name": "fingerprint", "blocks": self.blocks, "seed": SEED}

    @property
    def schema(self) -> pa.Schema:
        """Columns: `numbers` are 16 for each of `parts`, one after the other; see `Sketch`."""
        return pa.schema(
            {
                "family": pa.string(),
                "shape": pa.string(),
                "dtype": pa.string(),
                "parts": pa.list_(pa.string()),
                "numbers": pa.list_(pa.float64()),
                "sketch_kind": pa.string(),
                "sketch": pa.binary(),
                "digest": pa.string(),  # of files that no family reads
            }
        )

    def _limit(self, files: TensorFiles) -> None:
        files.largest_read = LARGEST_READ
        if self.limit_seconds is not None:
            files.deadline = time.monotonic() + self.limit_seconds

    def read(self, path: str) -> tuple[Fingerprint, int]:
        """The fingerprint of a file, and the bytes that it took."""
        with Checkpoint(path) as checkpoint:
            longest = max(max(e.shape, default=0) for e in checkpoint.files.entries.values())
            if longest > LONGEST_AXIS:
                raise CheckpointError(
                    f"{path} has an axis of {longest}; bulk work reads at most {LONGEST_AXIS}"
                )
            self._limit(checkpoint.files)
            found = fingerprint(checkpoint, blocks=self.blocks)
            return found, checkpoint.files.bytes_read

    def of_unsupported(self, path: str) -> dict[str, Any]:
        """A digest of its tensors, by which its copies are found."""
        with open_files(path) as files:
            self._limit(files)
            return {"digest": tensor_digest(files), "bytes_read": files.bytes_read}

    def columns(self, found: Sequence[Fingerprint]) -> list[dict[str, Any]]:
        """A row for each."""
        return [
            {
                "family": one.shape.partition(" ")[0],
                "shape": one.shape,
                "dtype": one.dtype,
                "parts": list(one.parts),
                "numbers": torch.stack(list(one.parts.values())).flatten().numpy(),
                "sketch_kind": one.sketch and one.sketch.kind,
                "sketch": one.sketch and one.sketch.to_bytes(),
            }
            for one in found
        ]
