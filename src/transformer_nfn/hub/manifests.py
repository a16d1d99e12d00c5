"""Lists of checkpoints in a file: what to read where listing a store would take too long.

A manifest may be somebody else's. It says which files are read, and nothing more: no file systems
but those that only read what they are asked for, and from elsewhere no files of this machine.
"""

import json
import os
from typing import Any, BinaryIO

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import csv, parquet

from transformer_nfn.escaping import from_spreadsheet
from transformer_nfn.hub.errors import HubError
from transformer_nfn.jobs import MOST_MORE, MOST_TIMES, DamagedError, read_table, sound
from transformer_nfn.stores import RangeFile, Store

#: Endings of manifests: a table with the column `path`, or a path on each line.
SUFFIXES = (".parquet", ".csv", ".jsonl", ".txt")
#: What a manifest may name by URL. fsspec knows more: some write copies (`simplecache::`), unpack
#: (`zip://`), or run commands on other machines (`ssh://`). Who types a URL may use them all.
PROTOCOLS = (
    "abfs",
    "abfss",
    "az",
    "file",
    "gcs",
    "gs",
    "hf",
    "http",
    "https",
    "memory",
    "s3",
    "s3a",
)
_REMOTE = f"^({'|'.join(one for one in PROTOCOLS if one != 'file')})://"
_TYPES = {"path": pa.string(), "size": pa.int64(), "version": pa.string()}
#: Least bytes of a request for one behind a URL: it is read from end to end.
_AHEAD = 2**23


def read_manifest(source: str) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Paths of a manifest, and their sizes and versions where it gives both.

    Paths that are not absolute are taken from the manifest's own folder.

    Raises:
        HubError: If it cannot be read, has no column `path`, or names what a manifest may not.
    """
    try:
        with _open(source) as file, sound("it"):
            table = _read(file, source)
            if "path" not in table.column_names:
                raise HubError(f"{source} needs a column `path`, and may have `size` and `version`")
            table = table.filter(pc.is_valid(table["path"]))
            columns = {n: table[n].cast(_TYPES[n]).combine_chunks() for n in table.column_names}
    except (OSError, DamagedError) as error:
        raise HubError(f"{source} is no manifest that can be read: {error}") from None
    paths = _absolute(columns["path"], source)
    _check(paths, source)
    if not {"size", "version"} <= set(columns):
        return paths, None, None
    return paths, pc.fill_null(columns["size"], 0), pc.fill_null(columns["version"], "")


def _open(source: str) -> BinaryIO | RangeFile:
    if "://" not in source:
        return open(source, "rb")
    store, path = Store.at(source)
    return store.open(path, _AHEAD)


def _read(file: Any, source: str) -> pa.Table:
    """The columns that count."""
    if source.endswith(".parquet"):
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        # Text as numbers of distinct values: one long value, a billion times, is few bytes.
        text = [name for name in parquet.read_schema(file).names if name in ("path", "version")]
        file.seek(0)
        with parquet.ParquetFile(file, read_dictionary=text) as opened:
            table = read_table(opened, size, list(_TYPES))
        _check_text(table, size)
        return table
    if source.endswith(".csv"):  # perhaps a table of `tnfn dedup --to`
        as_text = csv.ConvertOptions(column_types={"path": pa.string(), "version": pa.string()})
        table = csv.read_csv(file, convert_options=as_text)
        table = table.select([name for name in table.column_names if name in _TYPES])
        if "path" in table.column_names:
            place = table.column_names.index("path")
            table = table.set_column(place, "path", from_spreadsheet(table["path"]))
        return table
    if source.endswith(".jsonl"):
        return _json_lines(file)
    lines = file.read().decode(errors="backslashreplace").splitlines()
    return pa.table({"path": pa.array([line for line in lines if line.strip()], pa.string())})


def _check_text(table: pa.Table, size: int) -> None:
    """What the text would take, one value after the other."""
    for column in table.columns:
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else ():
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            if (pc.sum(lengths).as_py() or 0) > MOST_TIMES * size + MOST_MORE:
                raise DamagedError(f"its {size} bytes hold far longer text")


def _json_lines(file: Any) -> pa.Table:
    """Line by line: Arrow's own reader crashes on a line `null` (apache/arrow#47409)."""
    columns: dict[str, list[Any]] = {name: [] for name in _TYPES}
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"line {number} is not JSON: {str(error)[:100]}") from None
        if not isinstance(row, dict):
            raise DamagedError(f"line {number} is no JSON object")
        for name, values in columns.items():
            values.append(row.get(name))
    given = {name: values for name, values in columns.items() if any(v is not None for v in values)}
    return pa.table({name: pa.array(values, _TYPES[name]) for name, values in given.items()})


def _absolute(paths: pa.Array, source: str) -> pa.Array:
    home = os.path.join(source.rpartition("/")[0], "")
    if "://" not in source:
        home = os.path.join(os.path.dirname(os.path.abspath(source)), "")
    whole = pc.or_(pc.match_substring(paths, "://"), pc.starts_with(paths, "/"))
    return pc.if_else(whole, paths, pc.binary_join_element_wise(pa.scalar(home), paths, ""))


def _check(paths: pa.Array, source: str) -> None:
    """Refuse what would do more than read, and files of this machine in a list from elsewhere."""
    remote = pc.match_substring_regex(paths, _REMOTE)
    local = pc.or_(pc.starts_with(paths, "file://"), pc.invert(pc.match_substring(paths, "://")))
    allowed = remote if "://" in source else pc.or_(remote, local)
    allowed = pc.and_(allowed, pc.invert(pc.match_substring(paths, "::")))
    wrong = paths.filter(pc.invert(allowed))
    if len(wrong):
        raise HubError(
            f"{source} names {wrong[0].as_py()!r:.100}: a manifest may name URLs of "
            f"{', '.join(PROTOCOLS)}, not chained by `::`, and local files only if it is local"
        )
