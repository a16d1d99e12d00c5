"""Checkpoints under a folder, and their fingerprints, many at a time."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from transformer_nfn.checkpoints import (
    SINGLES,
    Checkpoint,
    CheckpointError,
    UnsupportedError,
    blobs_of,
    load_family,
    open_files,
)
from transformer_nfn.jobs import Done, Executor, InProcess
from transformer_nfn.kinship.digests import tensor_digest
from transformer_nfn.kinship.fingerprinting import Fingerprint, check_choice, fingerprint

_INDEX = ".safetensors.index.json"
_ENDS = (*SINGLES, _INDEX)
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")

#: What passes outcomes on and shows how far they are.
Track = Callable[[Iterator[Any]], Iterable[Any]]


def find_checkpoints(folder: str | Path) -> list[Path]:
    """All checkpoints under a folder, in natural order: files, and indices of shards.

    Hidden files are left out, since unfinished ones are hidden; links to folders are not followed,
    and links to files only where they stay under the folder, or lead from a snapshot of a Hugging
    Face cache to its blobs. No file is given twice.

    Raises:
        CheckpointError: If there is no such folder, or nothing in it.
    """
    home = Path(folder)
    if not home.is_dir():
        raise CheckpointError(f"{home} is not a folder")
    inside = home.resolve()
    found: dict[Path, Path] = {}
    for place, folders, names in os.walk(home):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        indices = [name for name in names if name.endswith(_INDEX)]
        for name in sorted(names):
            shard = bool(indices) and _SHARD.search(name) is not None
            if name.startswith(".") or shard or not name.endswith(_ENDS):
                continue
            path = Path(place, name)
            target = Path(os.path.realpath(path))  # `resolve` ends at a link that leads to itself
            if target.is_relative_to(inside) or target.parent == blobs_of(inside):
                found.setdefault(target, path)
    if not found:
        raise CheckpointError(f"{home} has no .safetensors or .gguf files")
    return sorted(found.values(), key=natural)


def natural(path: str | Path) -> list[tuple[int, str]]:
    """A sorting key that puts step-200 before step-1000.

    Example:
        >>> sorted([Path("step-1000"), Path("step-200")], key=natural)[0].name
        'step-200'
    """
    words = re.findall(r"\d+|\D+", str(path))
    return [(int(word), "") if word.isdecimal() else (-1, word) for word in words]


class Prints(NamedTuple):
    """What came of some files, each in the order in which they were given.

    Attributes:
        done: Fingerprints.
        broken: Files that have none, and why.
        unsupported: Files that no family reads.
    """

    done: list[Fingerprint]
    broken: dict[str, str]
    unsupported: "dict[str, Unsupported]"

    @property
    def unread(self) -> dict[str, str]:
        """Of all files without a fingerprint why."""
        return self.broken | {path: one.reason for path, one in self.unsupported.items()}

    @property
    def digests(self) -> dict[str, str]:
        """Of the tensors of files that no family reads."""
        return {path: one.digest for path, one in self.unsupported.items()}


class Unsupported(NamedTuple):
    """Of a file that no family reads: why, and a digest of its tensors."""

    reason: str
    digest: str


def fingerprints(
    paths: Sequence[str | Path],
    executor: Executor | None = None,
    track: Track = lambda outcomes: outcomes,
    *,
    blocks: str = "all",
    family: str | None = None,
) -> Prints:
    """Fingerprints of many checkpoints; of what cannot be read the reason.

    Args:
        paths: Paths or URLs.
        executor: Where to compute; in this process if None.
        track: Is given the outcomes and passes them on, to show progress.
        blocks: Which blocks are read, see `fingerprint`.
        family: A file with the table of their family, see `load_family`.
    """
    check_choice(blocks)  # a wrong word is reported before anything is read
    function = partial(try_fingerprint, blocks=blocks, family=family)
    results: dict[str | Path, Fingerprint | Unsupported | str] = {}
    for outcome in track((executor or InProcess()).run(function, paths)):
        done = isinstance(outcome, Done)
        results[outcome.job] = outcome.result if done else outcome.error.strip().splitlines()[-1]
    found = Prints([], {}, {})
    for path in paths:
        result = results.get(path)
        if isinstance(result, Fingerprint):
            found.done.append(result)
        elif isinstance(result, Unsupported):
            found.unsupported[str(path)] = result
        elif result is not None:
            found.broken[str(path)] = result
    return found


def try_fingerprint(
    path: str | Path, *, blocks: str = "all", family: str | None = None
) -> Fingerprint | Unsupported | str:
    """A fingerprint, or why there is none; a broken file is no reason to stop."""
    try:
        table = load_family(family) if family is not None else None
        try:
            with Checkpoint(path, family=table) as checkpoint:
                return fingerprint(checkpoint, blocks=blocks)
        except UnsupportedError as error:
            with open_files(path) as files:
                return Unsupported(str(error), tensor_digest(files))
    except (CheckpointError, OSError) as error:
        return str(error)
