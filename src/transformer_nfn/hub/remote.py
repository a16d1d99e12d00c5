"""Checkpoints behind a URL that fsspec knows: all under a folder, and one as it is now."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from transformer_nfn.hub.items import CONFIG, INDEX, Item, Piece, is_piece, items_of, version_of
from transformer_nfn.stores import Store

#: What file systems call that which changes with a file, the surest first.
_STAMPS = (
    "ETag", "etag", "generation", "blob_id", "mtime", "LastModified", "last_modified", "created",
)  # fmt: skip


def walk(url: str) -> Iterator[Item]:
    """All checkpoints under a URL, by one flat listing; about 1 kB of memory for each file.

    Where a listing has only names, as on http, items have no version.
    """
    store, home = Store.at(url)
    store.forget()
    folders: dict[str, dict[str, Piece]] = {}
    for path, info in store.find(home).items():
        folder, _, name = path.rpartition("/")
        hidden = any(part.startswith(".") for part in folder[len(home) :].split("/"))
        if is_piece(name) and not hidden:
            folders.setdefault(folder, {})[name] = _piece(info)
    for folder, pieces in folders.items():
        known = all(piece.stamp for piece in pieces.values())
        for item in items_of(f"{store.url(folder)}/", pieces):
            yield item if known else item._replace(version="")


def look(url: str) -> Item:
    """One checkpoint as it is now, not as a listing said before.

    Raises:
        OSError: If it is not there.
    """
    store, path = Store.at(url)
    url = store.url(path)  # spelled as in a listing
    folder, _, name = path.rpartition("/")
    store.forget(folder)
    if not name.endswith(INDEX):
        info = store.info(path)
        if info.get("type") == "directory":
            raise IsADirectoryError("it is a folder; name the files in it")
        pieces = [_piece(info)]
        with suppress(FileNotFoundError):
            pieces.append(_piece(store.file_info(f"{folder}/{CONFIG}")))
        return Item(url, pieces[0].size, version_of(pieces))
    listed = {entry["name"].rpartition("/")[2]: entry for entry in store.entries(folder)}
    here = {name: _piece(info) for name, info in listed.items() if is_piece(name)}
    for item in items_of("", here):
        if item.path == name:
            return item._replace(path=url)
    raise FileNotFoundError(f"{url} does not exist")


def is_folder(url: str) -> bool:
    """Whether there is a folder behind a URL."""
    store, path = Store.at(url)
    return store.is_folder(path)


def _piece(info: Mapping[str, Any]) -> Piece:
    stamp = next((info[key] for key in _STAMPS if info.get(key) is not None), "")
    if isinstance(stamp, datetime):  # some give a number in listings and a date for one file
        stamp = stamp.timestamp()
    return Piece(int(info.get("size") or 0), str(stamp))
