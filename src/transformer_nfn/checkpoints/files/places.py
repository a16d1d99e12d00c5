"""Where the files of a checkpoint are, on a disk or behind a URL, and how they are opened."""

import os
import stat
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, TypeAlias

from transformer_nfn.checkpoints.errors import CheckpointError, UnreadableError
from transformer_nfn.checkpoints.files.header import read_json_object
from transformer_nfn.checkpoints.files.remote import RemotePath
from transformer_nfn.stores import RangeFile

#: Longest index and config that is read.
MAX_JSON = 2 * 2**20
MAX_SHARDS = 4096
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
#: Endings of files with tensors, and of files that are pickles.
SINGLES = (".safetensors", ".gguf")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

Place: TypeAlias = Path | RemotePath
File: TypeAlias = BinaryIO | RangeFile


def place_of(path: str | Path) -> Place:
    """A path, or a URL that is no local file's.

    Example:
        >>> place_of("nets/a.safetensors").name, place_of("memory://nets/a.safetensors").name
        ('a.safetensors', 'a.safetensors')
    """
    if isinstance(path, Path) or "://" not in path:
        return Path(path)
    return Path(path.partition("://")[2]) if path.startswith("file://") else RemotePath(path)


def read_json_file(path: Place) -> dict[str, object]:
    """A JSON object from a file beside the weights.

    Raises:
        CheckpointError: If it is too long, not a regular file, or not a JSON object.
    """
    return read_json_object(read_small_file(path), str(path))


def read_small_file(path: Place) -> bytes:
    """The bytes of a file beside the weights.

    Raises:
        CheckpointError: If it is too long, or not a regular file.
    """
    try:
        handle, size = open_regular(path)
        with closing(handle):
            if size > MAX_JSON:
                raise CheckpointError(f"{path} has {size} bytes, more than {MAX_JSON}")
            return handle.read(MAX_JSON) or b""
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from None


def find_files(path: Place) -> tuple[list[Place], Place | None]:
    """The files of a checkpoint in order, and their index if there is one.

    Raises:
        CheckpointError: If there are none, or the index names what it must not.
    """
    if path.is_dir():
        if (path / INDEX).exists() and (path / SINGLE).exists():
            raise CheckpointError(
                f"{path} has {SINGLE} and {INDEX}; which one a loader takes is not clear: name one"
            )
        if (path / INDEX).exists():
            return _shards(path / INDEX)
        if (path / SINGLE).exists():
            return [path / SINGLE], None
        found: list[Place] = sorted(path.glob("*.safetensors"), key=str)
        pickles: list[Place] = sorted(path.glob("pytorch_model*.bin*"), key=str)
        if len(found) == 1 and pickles:
            raise CheckpointError(
                f"{path} has {found[0].name} and {pickles[0].name}, and a loader takes the second; "
                f"name the first"
            )
        if len(found) == 1:
            return found, None
        others: list[Place] = sorted(path.glob("*.gguf"), key=str)
        if others and not found and (len(others) > 1 or pickles):
            raise CheckpointError(f"{path} has {others[0].name} and other files; name one")
        if others and not found:
            return others, None
        if pickles and not found:
            raise CheckpointError(
                f"{path} has no .safetensors file, only a pickle; make one of it with "
                f"`tnfn convert {pickles[0]} --unpickle --out FOLDER`"
            )
        if not found:
            raise CheckpointError(f"{path} is a folder without a .safetensors or .gguf file")
        raise CheckpointError(
            f"{path} has {len(found)} .safetensors files, none of them {SINGLE}, and no {INDEX}; "
            f"name one"
        )
    if path.name.endswith(".index.json"):
        return _shards(path)
    if path.suffix in PICKLES:
        raise CheckpointError(
            f"{path} is a pickle, which can run code when it is read; `tnfn convert --unpickle` "
            f"makes safetensors of it"
        )
    return [path], None


def _shards(index: Place) -> tuple[list[Place], Place]:
    names = sorted(set(weight_map(index).values()))
    if not 1 <= len(names) <= MAX_SHARDS:
        raise CheckpointError(f"{index} names {len(names)} files, not 1 to {MAX_SHARDS}")
    for name in names:
        # A bare name: no folder, no parent, no drive, nothing that leads outside or steers a
        # terminal; a zero byte is not printable either.
        if (
            name != Path(name).name
            or name in ("", ".", "..")
            or "\\" in name
            or not name.isprintable()
        ):
            raise CheckpointError(f"{index} names {name[:80]!r}, which is not a plain file name")
        _check_inside(index.parent / name)
    return [index.parent / name for name in names], index


def _check_inside(file: Place) -> None:
    """A shard may be a link only to its own folder, or to `blobs` of a Hugging Face cache."""
    if isinstance(file, RemotePath) or not file.is_symlink():  # object stores have no links
        return
    try:
        folder, target = file.parent.resolve(), file.resolve()
    except RuntimeError:  # what pathlib says of links in a circle
        raise CheckpointError(f"{file} is a link that leads back to itself") from None
    if target.parent not in (folder, blobs_of(folder)):
        raise CheckpointError(
            f"{file} is a link that leads out of its folder, to {str(target)[:80]!r}"
        )


def blobs_of(folder: Path) -> Path:
    """Where the files of a snapshot in a Hugging Face cache are; of another folder itself."""
    return folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder


def weight_map(index: Place) -> dict[str, str]:
    """Which file an index says a tensor is in."""
    stated = read_json_file(index)
    names, more = stated.get("weight_map"), stated.get("metadata")
    if isinstance(more, dict) and "dtype" in more:
        raise CheckpointError(
            f"{index} says a dtype in its metadata, to which a loader rounds all; remove it there"
        )
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files")
    return names


def open_regular(path: Place) -> tuple[File, int]:
    """Open a file and nothing else: a pipe or device would block or never end."""
    if isinstance(path, RemotePath):
        remote = path.open()
        return remote, remote.size
    descriptor = None
    try:
        if stat.S_ISREG(os.stat(path).st_mode):  # looked at first: some devices act when opened
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise CheckpointError(f"{path} does not exist") from None
    except ValueError as error:  # a zero byte in the name
        raise CheckpointError(f"{str(path)!r} cannot be opened: {error}") from None
    if descriptor is None:
        raise CheckpointError(f"{path} is not a regular file")
    state = os.fstat(descriptor)
    if not stat.S_ISREG(state.st_mode):  # another file since the first look
        os.close(descriptor)
        raise CheckpointError(f"{path} is not a regular file")
    return os.fdopen(descriptor, "rb", buffering=0), state.st_size
