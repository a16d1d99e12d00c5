"""Checkpoints on a local disk: all under a folder, and one as it is now."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from transformer_nfn.checkpoints import blobs_of
from transformer_nfn.hub.items import CONFIG, INDEX, Item, Piece, is_piece, items_of, version_of


def walk(home: str) -> Iterator[Item]:
    """All checkpoints under a folder.

    As `find_checkpoints` does it: hidden files and folders are left out, links to folders are not
    followed, links to files only where they stay under the folder or lead to the blobs of a cache
    of Hugging Face, and no file is given twice. A folder that cannot be listed is given as an item,
    so that it becomes a row with a reason.
    """
    inside = os.path.realpath(home)
    linked: dict[str, Item] = {}
    waiting = [home]
    while waiting:
        folder = waiting.pop()
        try:
            pieces, links, below = _scan(folder)
        except OSError:
            yield Item(folder, 0, "")
            continue
        waiting += below
        for item in items_of(os.path.join(folder, ""), pieces):
            if os.path.basename(item.path) not in links:
                yield item
                continue
            target = os.path.realpath(item.path)
            if os.path.islink(target):  # links in a circle: a row with a reason
                yield item
                continue
            stays = os.path.commonpath([inside, target]) == inside
            beside = os.path.dirname(target) == str(blobs_of(Path(inside)))
            if not _is_listed(target, inside) if stays else beside:
                linked[target] = min(item, linked.get(target, item))
    yield from linked.values()


def look(path: str) -> Item:
    """One checkpoint as it is now.

    Raises:
        OSError: If it is not there.
    """
    path = os.path.abspath(path)
    if not path.endswith(INDEX):
        file = os.stat(path)
        if stat.S_ISDIR(file.st_mode):  # its own time says nothing of the files in it
            os.scandir(path).close()  # complains if it cannot be listed
            raise IsADirectoryError("it is a folder; name the files in it")
        pieces = [Piece(file.st_size, str(file.st_mtime_ns))]
        pieces += _config(os.path.join(os.path.dirname(path), CONFIG))
        return Item(path, file.st_size, version_of(pieces))
    folder, name = os.path.split(path)
    pieces_here, _, _ = _scan(folder)
    for item in items_of("", pieces_here):
        if item.path == name:
            return item._replace(path=path)
    raise FileNotFoundError(f"{path} does not exist")


def _config(path: str) -> list[Piece]:
    """config.json as a walk takes it: no folder, but a link that leads nowhere."""
    try:
        state = os.stat(path)
    except OSError:
        return [Piece(0, "")] if os.path.islink(path) else []
    return [] if stat.S_ISDIR(state.st_mode) else [Piece(state.st_size, str(state.st_mtime_ns))]


def _scan(folder: str) -> tuple[dict[str, Piece], set[str], list[str]]:
    """Files of checkpoints with size and time, which of them are links, and folders."""
    pieces: dict[str, Piece] = {}
    links: set[str] = set()
    below: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if is_piece(name) and not _is_folder(entry):
                try:
                    state = entry.stat()
                    pieces[name] = Piece(state.st_size, str(state.st_mtime_ns))
                except OSError:  # a link that leads nowhere, or gone since
                    pieces[name] = Piece(0, "")
                if entry.is_symlink():
                    links.add(name)
            elif not name.startswith(".") and entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
    return pieces, links, below


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads back to itself
        return False


def _is_listed(target: str, inside: str) -> bool:
    """Whether the walk meets a link's target itself."""
    below = os.path.relpath(target, inside).split(os.sep)
    return is_piece(below[-1]) and not any(part.startswith(".") for part in below)
