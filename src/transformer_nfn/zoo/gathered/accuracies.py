"""The table of accuracies that comes with a folder of networks."""

import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from transformer_nfn.jobs import DamagedError, read_csv
from transformer_nfn.zoo.errors import StoreError

_SHOWN = 3  # paths that an error shows


class Labelled(NamedTuple):
    """One line: a file below the folder, its accuracy, and which others it is related to."""

    path: str
    accuracy: float
    group: str


def read_accuracies(path: Path, folder: Path) -> list[Labelled]:
    """Read path, accuracy and, if there, group; sorted by path.

    Args:
        path: A CSV file.
        folder: Where the files are.

    Raises:
        StoreError: If a line is none, an accuracy is not between 0 and 1, or a file is missing,
            named twice, or outside the folder.
    """
    try:
        columns = read_csv(path, ("path", "accuracy"), ("group",))
    except DamagedError as error:
        raise StoreError(str(error)) from None
    count = len(columns["path"])
    groups = columns.get("group", [""] * count)
    lines = [
        Labelled(name, _accuracy(path, name, text), group)
        for name, text, group in zip(columns["path"], columns["accuracy"], groups, strict=True)
    ]
    if not lines:
        raise StoreError(f"{path} names no file")
    names = [line.path for line in lines]
    _refuse(path, "are named twice", [name for name, n in Counter(names).items() if n > 1])
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    _refuse(path, f"are not given as paths below {folder}", outside)
    missing = [name for name in names if not (folder / name).is_file()]
    _refuse(path, f"are no files in {folder}", missing)
    return sorted(lines)


def _accuracy(path: Path, name: str, text: str) -> float:
    try:
        accuracy = float(text)
    except ValueError:
        accuracy = math.nan
    if not 0 <= accuracy <= 1:
        raise StoreError(
            f"{path}: the accuracy of {name[:80]!r} is {text[:20]!r}, not a number from 0 to 1 "
            "(0.83, not 83)"
        )
    return accuracy


def _refuse(path: Path, what: str, names: list[str]) -> None:
    if names:
        shown = ", ".join(repr(name)[:80] for name in sorted(names)[:_SHOWN])
        more = ", …" if len(names) > _SHOWN else ""
        raise StoreError(f"{path}: {len(names)} paths {what}: {shown}{more}")
