"""Lists of checkpoints in a file: what to read where listing a store would take too long."""

import os
from typing import Any, BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv, json, parquet

from transformer_nfn.hub.errors import HubError
from transformer_nfn.stores import RangeFile, Store

#: Endings of manifests: a table with the column `path`, or a path on each line.
SUFFIXES = (".parquet", ".csv", ".jsonl", ".txt")
#: Least bytes of a request for one behind a URL: it is read from end to end.
_AHEAD = 2**23


def read_manifest(source: str) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Paths of a manifest, and their sizes and versions where it gives both.

    Paths that are not absolute are taken from the manifest's own folder.

    Raises:
        HubError: If it cannot be read, or has no column `path`.
    """
    try:
        with _open(source) as file:
            table = _read(file, source)
    except (OSError, pa.ArrowException) as error:
        raise HubError(f"{source} is no manifest that can be read: {error}") from None
    if "path" not in table.column_names:
        raise HubError(f"{source} needs a column `path`, and may have `size` and `version`")
    table = table.filter(pc.is_valid(table["path"]))
    paths = _absolute(table["path"].cast(pa.string()).combine_chunks(), source)
    if not {"size", "version"} <= set(table.column_names):
        return paths, None, None
    sizes = pc.fill_null(table["size"].cast(pa.int64()), 0)
    versions = pc.fill_null(table["version"].cast(pa.string()), "")
    return paths, sizes.combine_chunks(), versions.combine_chunks()


def _open(source: str) -> BinaryIO | RangeFile:
    if "://" not in source:
        return open(source, "rb")
    store, path = Store.at(source)
    return store.open(path, _AHEAD)


def _read(file: Any, source: str) -> pa.Table:
    if source.endswith(".parquet"):
        found = set(parquet.read_schema(file).names)
        file.seek(0)
        wanted = [name for name in ("path", "size", "version") if name in found]
        return parquet.read_table(file, columns=wanted)
    if source.endswith(".csv"):
        as_text = csv.ConvertOptions(column_types={"path": pa.string(), "version": pa.string()})
        return csv.read_csv(file, convert_options=as_text)
    if source.endswith(".jsonl"):
        return json.read_json(file)
    lines = file.read().decode(errors="backslashreplace").splitlines()
    return pa.table({"path": pa.array([line for line in lines if line.strip()], pa.string())})


def _absolute(paths: pa.Array, source: str) -> pa.Array:
    home = os.path.join(source.rpartition("/")[0], "")
    if "://" not in source:
        home = os.path.join(os.path.dirname(os.path.abspath(source)), "")
    whole = pc.or_(pc.match_substring(paths, "://"), pc.starts_with(paths, "/"))
    return pc.if_else(whole, paths, pc.binary_join_element_wise(pa.scalar(home), paths, ""))
