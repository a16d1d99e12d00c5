"""Other formats as a folder of safetensors that everybody reads."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from transformer_nfn.checkpoints.errors import CheckpointError, UnsupportedError
from transformer_nfn.checkpoints.files.header import laid_out, write_header
from transformer_nfn.checkpoints.files.places import PICKLES, SINGLE, place_of, read_small_file
from transformer_nfn.checkpoints.files.tensors import TensorFiles
from transformer_nfn.checkpoints.opening import open_files
from transformer_nfn.checkpoints.unpickling import unpickle
from transformer_nfn.checkpoints.writing import out_folder, raw_bytes

#: Names of files that a loader may take for weights, and of parts of a pickle.
_WEIGHTS = re.compile(r"\.safetensors(\.index\.json)?$|^pytorch_model.*\.bin")
_PART = re.compile(r"-\d+-of-0*([2-9]|[1-9]\d+)\.")
#: Bytes that are in memory at a time.
_PIECE = 2**24


def convert(
    source: str | Path,
    out: str | Path,
    *,
    unpickled: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Write a checkpoint as a folder with model.safetensors and config.json.

    Args:
        source: A GGUF or safetensors file, or a pickle of PyTorch.
        out: A new folder, or one without weights.
        unpickled: Whether pickles may be read, in a process of their own.
        progress: Called with the number of tensors that are written, and of all.

    Raises:
        CheckpointError: If it cannot be read, or there are weights in `out` already.
    """
    home, given = Path(out), place_of(source)
    pickled = isinstance(given, Path) and given.suffix in PICKLES
    if pickled and not unpickled:
        raise CheckpointError(
            f"{source} is a pickle, which can run code when it is read; say --unpickle to read its "
            f"tensors in a process of its own that runs none"
        )
    if pickled and _PART.search(given.name):
        raise CheckpointError(f"{source} is one of several parts, of which none is a model")
    with out_folder(home):
        there = [path.name for path in home.iterdir() if _WEIGHTS.search(path.name)]
        if there:
            raise CheckpointError(f"{home} has {there[0]} already; choose another --out")
        with TemporaryDirectory(dir=home, prefix=".convert-") as work:
            written = Path(work) / SINGLE
            if isinstance(given, Path) and pickled:
                unpickle(given, written)
                beside = given.with_name("config.json")
                config = read_small_file(beside) if beside.exists() else None
            else:
                with open_files(source) as files:
                    if files.config == {}:
                        raise UnsupportedError(f"{source}: no family has a table for this GGUF")
                    _write(files, written, progress)
                    config = _config_of(files)
            TensorFiles(written).close()  # as strict with it as with a stranger's
            target = home / "config.json"
            if config is not None and target.exists() and target.read_bytes() != config:
                raise CheckpointError(f"{target} is another model's; choose another --out")
            if config is not None:
                target.write_bytes(config)
            os.replace(written, home / SINGLE)
    return home


def _config_of(files: TensorFiles) -> bytes | None:
    if files.config:
        return json.dumps(files.config, indent=2).encode()
    beside = files.folder / "config.json"
    return read_small_file(beside) if files.config is None and beside.exists() else None


def _write(files: TensorFiles, out: Path, progress: Callable[[int, int], None]) -> None:
    """All tensors as they are read, in the order of their bytes."""
    entries = laid_out(files.entries)
    size = max((entry.end for entry in entries.values()), default=0)
    if shutil.disk_usage(out.parent).free < size:
        raise CheckpointError(f"{out.parent.parent} has no room for {size} bytes")
    with open(out, "xb") as target:
        metadata = {"format": "pt", **files.shards[0][1].metadata}
        target.write(write_header(entries, metadata))
        for number, name in enumerate(entries, start=1):
            for piece in files.pieces(name, _PIECE):
                target.write(raw_bytes(piece))
            progress(number, len(entries))
        target.flush()
        os.fsync(target.fileno())
