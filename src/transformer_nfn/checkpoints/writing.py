"""Write a checkpoint again with some tensors changed, all else byte for byte."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import torch
from torch import Tensor

from transformer_nfn.checkpoints.checkpoint import Checkpoint
from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.files.header import Entry, laid_out, write_header
from transformer_nfn.checkpoints.files.places import (
    INDEX,
    SINGLE,
    read_json_file,
    read_small_file,
    weight_map,
)
from transformer_nfn.checkpoints.files.tensors import TensorFiles

_CHUNK = 2**24


def rewrite(
    checkpoint: Checkpoint,
    changes: Iterable[tuple[str, Tensor]],
    out: str | Path,
    *,
    added: Mapping[str, Entry] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a copy in which the named tensors have other values.

    Nothing is visible under the new names until all is written.

    Args:
        checkpoint: What to copy.
        changes: Names and values, one by one, in any order; they are rounded to the stored dtype.
        out: A `.safetensors` file, or a folder for it or its shards.
        added: Tensors that the copy has beside those of the original; their values come with
            `changes`. Only dtype and shape of the entries count.
        config: Keys of config.json that change.

    Returns:
        The file, or the folder of shards.

    Raises:
        CheckpointError: If the copy would replace the original or share a config it must not.
    """
    if checkpoint.files.config is not None:
        raise CheckpointError(
            f"{checkpoint.path} is GGUF, of which no copy is written; `tnfn convert` makes "
            f"safetensors of it"
        )
    added = dict(added or {})
    single = len(checkpoint.files.shards) == 1 and checkpoint.files.index is None
    home = Path(out)
    to_file = home.suffix == ".safetensors"
    if to_file and not single:
        raise CheckpointError(f"{checkpoint.path} has shards; --out must be a folder, not {out}")
    folder = home.parent if to_file else home
    original = checkpoint.files.folder
    near = isinstance(original, Path) and folder.exists()
    same = near and folder.resolve() == Path(str(original)).resolve()
    if same and (config or not to_file):
        raise CheckpointError(
            f"the copy needs a folder and config.json of its own; {folder} is the original's"
        )
    names = [home.name if to_file else SINGLE] if single else [
        path.name for path, _ in checkpoint.files.shards
    ]  # fmt: skip
    finals = [folder / name for name in names]
    if any(path.exists() for path in (*finals, *([folder / INDEX] if not single else []))):
        raise CheckpointError(f"{folder} has {names[0]} or an index already; choose another --out")
    with out_folder(folder), _temporaries(finals) as temporaries:
        _write_all(checkpoint, changes, temporaries, added)
        if not same and checkpoint.family.in_metadata is None:  # else the file carries them
            _write_config(checkpoint, folder, config or {})
        if checkpoint.files.index:
            _write_index(checkpoint, folder, names[-1], added)
        for temporary, final in zip(temporaries, finals, strict=True):
            os.replace(temporary, final)
    return finals[0] if to_file else folder


@contextmanager
def out_folder(folder: Path) -> Iterator[None]:
    """A folder to write to; if it is new and nothing came of it, it goes again."""
    new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"--out {folder}: {error.strerror or error}") from None
    try:
        yield
    except BaseException:
        if new and not any(folder.iterdir()):
            folder.rmdir()
        raise


@contextmanager
def _temporaries(finals: list[Path]) -> Iterator[list[Path]]:
    paths = [final.with_name(f".{final.name}.{uuid4().hex}.part") for final in finals]
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _write_all(
    checkpoint: Checkpoint,
    changes: Iterable[tuple[str, Tensor]],
    temporaries: list[Path],
    added: Mapping[str, Entry],
) -> None:
    """Copy each shard, then write the changed tensors over their places."""
    places: dict[str, tuple[int, int, Entry]] = {}
    last = len(temporaries) - 1
    for number, temporary in enumerate(temporaries):
        more = added if number == last else {}
        entries, start = _copy(checkpoint.files, number, temporary, more)
        places |= {name: (number, start + entry.begin, entry) for name, entry in entries.items()}
    missing = set(added)
    with ExitStack() as stack:
        handles: list[BinaryIO] = [stack.enter_context(open(path, "r+b")) for path in temporaries]
        for name, value in changes:
            number, place, entry = places[checkpoint.files.stored_name(name)]
            if tuple(value.shape) != entry.shape:
                raise AssertionError(f"{name} has shape {entry.shape}, got {tuple(value.shape)}")
            handles[number].seek(place)
            handles[number].write(raw_bytes(value.to(entry.dtype)))
            missing.discard(name)
        assert not missing, missing
        for handle in handles:
            handle.flush()
            os.fsync(handle.fileno())


def _copy(
    files: TensorFiles, number: int, temporary: Path, added: Mapping[str, Entry]
) -> tuple[dict[str, Entry], int]:
    """Copy a shard, from wherever it is; its entries in the copy, and where tensors begin."""
    header = files.shards[number][1]
    entries = dict(header.entries)
    at = max((entry.end for entry in entries.values()), default=0)
    entries |= laid_out(added, at)
    at = max((entry.end for entry in entries.values()), default=0)
    # Without new tensors the header stays as it is written, spaces and all.
    head = (
        write_header(entries, header.metadata) if added else raw_bytes(files.header_bytes(number))
    )
    with open(temporary, "xb") as target:
        target.write(head)
        for piece in files.data_pieces(number, _CHUNK):
            target.write(raw_bytes(piece))
        target.truncate(len(head) + at)
    return entries, len(head)


def raw_bytes(value: Tensor) -> memoryview:
    """A tensor as it is stored."""
    flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
    return memoryview(flat.numpy())  # type: ignore[arg-type]


def _write_config(checkpoint: Checkpoint, folder: Path, changes: Mapping[str, Any]) -> None:
    """A copy of config.json, and nothing but the named keys changed."""
    beside, target = checkpoint.files.folder / "config.json", folder / "config.json"
    if target.exists() and (changes or not beside.exists()):
        raise CheckpointError(f"{target} exists and is not this checkpoint's; choose another --out")
    if not beside.exists():
        if changes:
            raise CheckpointError(
                f"{checkpoint.path} has no config.json, and its copy needs one that says {changes}"
            )
        return
    config = read_json_file(beside)  # a regular file of a sound size
    text = read_small_file(beside)
    if changes:
        text = json.dumps({**config, **changes}, indent=2).encode()
    if target.exists() and target.read_bytes() != text:
        raise CheckpointError(f"{target} exists and is another; choose another --out")
    target.write_bytes(text)


def _write_index(
    checkpoint: Checkpoint, folder: Path, last: str, added: Mapping[str, Entry]
) -> None:
    assert checkpoint.files.index is not None
    index = read_json_file(checkpoint.files.index)
    index["weight_map"] = weight_map(checkpoint.files.index) | dict.fromkeys(added, last)
    (folder / INDEX).write_text(json.dumps(index, indent=2))
