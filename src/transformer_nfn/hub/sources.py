"""What there is: folders, manifests, files and URLs as one table of checkpoints."""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn.hub import local, remote
from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.items import Item
from transformer_nfn.hub.manifests import SUFFIXES, read_manifest

#: Columns of a listing. A path is absolute, or a URL.
LISTING = pa.schema({"path": pa.string(), "size": pa.int64(), "version": pa.string()})
#: Items that are Python objects at a time.
_CHUNK = 2**16
#: Requests at a time where each file is asked for its version.
_THREADS = 32


def list_items(sources: Sequence[str]) -> pa.Table:
    """All checkpoints of some sources, each once, sorted by path.

    Args:
        sources: Files, folders, manifests (`.parquet`, `.csv`, `.jsonl`, `.txt`), and fsspec URLs
            of any of them.

    Raises:
        HubError: If a source does not exist, or there is nothing in any.
    """
    parts = [table for source in sources for table in _list(source)]
    listing = pa.concat_tables([LISTING.empty_table(), *parts]).combine_chunks()
    if not len(listing):
        raise HubError(f"no .safetensors or .gguf files in {', '.join(sources)}")
    listing = listing.sort_by("path")
    if len(sources) == 1 and not sources[0].endswith(SUFFIXES):
        return listing
    paths = listing["path"].combine_chunks()
    first = pc.not_equal(paths[1:], paths[:-1])
    return listing.filter(pa.concat_arrays([pa.array([True]), first]))


def look(path: str) -> Item:
    """One checkpoint as it is now.

    Raises:
        OSError: If it is not there.
    """
    return remote.look(path) if "://" in path else local.look(path)


def _list(source: str) -> Iterator[pa.Table]:
    if source.startswith("file://"):
        source = source.removeprefix("file://")
    far = "://" in source
    if not far and not os.path.exists(source):
        raise HubError(f"{source} does not exist")
    if source.endswith(SUFFIXES):
        yield from _listed(source)
    elif remote.is_folder(source) if far else os.path.isdir(source):
        walked = remote.walk(source) if far else local.walk(os.path.abspath(source))
        yield from _tables(walked)
    else:
        yield from _tables([Item(source if far else os.path.abspath(source), 0, "")])


def _listed(source: str) -> Iterator[pa.Table]:
    paths, sizes, versions = read_manifest(source)
    if sizes is not None and versions is not None:
        yield pa.table([paths, sizes, versions], schema=LISTING)
    else:
        yield from _tables(Item(path.as_py(), 0, "") for path in paths)


def _tables(items: Iterable[Item]) -> Iterator[pa.Table]:
    """Items in tables; those without a version are looked at, far ones many at a time."""
    waiting = iter(items)
    with ThreadPoolExecutor(_THREADS) as threads:
        while chunk := list(islice(waiting, _CHUNK)):
            bare = [item.path for item in chunk if not item.version]
            if bare:
                far = threads.map(_look_or_not, [path for path in bare if "://" in path])
                chunk = [item for item in chunk if item.version]
                chunk += [*far, *(_look_or_not(path) for path in bare if "://" not in path)]
            paths, sizes, versions = zip(*chunk, strict=True)
            columns = [_text(paths), pa.array(sizes, pa.int64()), _text(versions)]
            yield pa.table(columns, schema=LISTING)


def _look_or_not(path: str) -> Item:
    """What cannot be looked at is an item all the same, and becomes a row with a reason."""
    try:
        return look(path)
    except Exception:  # of any library behind a URL
        return Item(path, 0, "")


def _text(words: Sequence[str]) -> pa.Array:
    try:
        return pa.array(words, pa.string())
    except UnicodeEncodeError:  # names that are no UTF-8: they are not found, and so reported
        whole = [word.encode(errors="backslashreplace").decode() for word in words]
        return pa.array(whole, pa.string())
