"""What a checkpoint is, to the byte: SHA-256 of its files and of what it was read with."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from transformer_nfn.checkpoints.checkpoint import Checkpoint
from transformer_nfn.checkpoints.config import config_file
from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError
from transformer_nfn.checkpoints.files.places import MAX_JSON, Place, open_regular

#: Bytes that are read at a time.
_PIECE = 2**22


@dataclass(frozen=True)
class Digests:
    """SHA-256 of all that makes a checkpoint, as `sha256sum` prints it.

    Attributes:
        files: Of each file with tensors, by its name without folders.
        config: Of config.json; None where there is none, and the settings are in the file itself.
        options: What was given with `--set`, as JSON with sorted keys and without spaces.
    """

    files: Mapping[str, str]
    config: str | None
    options: str

    @staticmethod
    def of(checkpoint: Checkpoint) -> "Digests":
        """Read all files of an open checkpoint once, some bytes at a time, local or remote."""
        files = {}
        for number, (path, _) in enumerate(checkpoint.files.shards):
            digest = sha256(memoryview(checkpoint.files.header_bytes(number).numpy()))  # type: ignore[arg-type]
            for part in checkpoint.files.data_pieces(number, _PIECE):
                digest.update(memoryview(part.numpy()))  # type: ignore[arg-type]
            files[path.name] = digest.hexdigest()
        config = config_file(checkpoint.files, checkpoint.family, checkpoint.config_given)
        return Digests(
            files, None if config is None else _of_file(config), canonical_json(checkpoint.options)
        )

    def difference(self, other: "Digests") -> str | None:
        """The first thing in which another differs, in words; None if it is the same.

        Names of files do not count, and neither does their order.
        """
        mine, theirs = sorted(self.files.values()), sorted(other.files.values())
        for name, digest in other.files.items():
            if digest not in mine:
                return f"{name[:80]!r} is another file: its SHA-256 is {digest}"
        if mine != theirs:
            return f"there are {len(theirs)} files, not {len(mine)}"
        if self.config != other.config:
            return f"config.json has the SHA-256 {other.config}, not {self.config}"
        if self.options != other.options:
            return f"it was read with the options {self.options:.80}, not {other.options:.80}"
        return None


def canonical_json(value: Mapping[str, Any]) -> str:
    """A table as one text, whoever writes it: keys sorted, no spaces, ASCII.

    Example:
        >>> canonical_json({"n_head": 3, "activation_function": "relu"})
        '{"activation_function":"relu","n_head":3}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _of_file(path: Place) -> str:
    try:
        handle, size = open_regular(path)
        with closing(handle):
            if size > MAX_JSON:
                raise CheckpointError(f"{path} has {size} bytes, more than {MAX_JSON}")
            return sha256(handle.read(MAX_JSON) or b"").hexdigest()
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from None
