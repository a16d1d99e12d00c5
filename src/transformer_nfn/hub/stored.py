"""Fingerprints in a folder of results as an index, and the kin among them, kept beside them."""

import io

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyarrow import parquet

from transformer_nfn.hub.errors import HubError
from transformer_nfn.hub.fingerprint_task import FingerprintTask
from transformer_nfn.hub.store import Results
from transformer_nfn.jobs import DamagedError, read_table, sound
from transformer_nfn.kinship import (
    WIDTH,
    Edge,
    Forest,
    Index,
    Shelf,
    Sketch,
    Stack,
    copy_limit,
    shelve_sketches,
)

#: The forest of kin: derived from the rows, so it may be lost or out of date.
KIN = "links.pq"
_SCHEMA = pa.schema(
    {
        "first": pa.binary(16),
        "second": pa.binary(16),  # null: a fingerprint alone, all of which are listed
        "distance": pa.float64(),
        "copies": pa.bool_(),
    }
)


def stored_index(results: Results, listing: pa.Table | None = None) -> Index:
    """The fingerprints of a folder of results, sorted by path.

    Args:
        results: Where they are.
        listing: Only what is there now; None for all that was ever read.

    Raises:
        HubError: If the folder holds other results.
    """
    if results.task.get("name") != "fingerprint":
        raise HubError(f"{results.url} holds {results.task.get('name')} results, not fingerprints")
    columns = ["status", "shape", "dtype", "parts", "numbers", "sketch_kind", "sketch"]
    table = results.rows(columns, FingerprintTask().schema)
    chosen = pc.equal(table["status"], "ok")
    if listing is not None:
        chosen = pc.and_(chosen, pc.is_in(table["path"], listing["path"].combine_chunks()))
    table = table.filter(chosen).sort_by("path")
    _check_numbers(table, results.url)
    shapes = table["shape"].combine_chunks().dictionary_encode()
    of_shape = shapes.indices.to_numpy()
    shelves = {}
    for number, shape in enumerate(shapes.dictionary.to_pylist()):
        files = np.flatnonzero(of_shape == number)
        shelves[shape] = Shelf(files, _stack(table.take(files)))
    sketches = shelve_sketches(_sketches(table, results.url))
    return Index(table["path"].to_pylist(), table["dtype"].to_pylist(), shelves, sketches)


def stored_digests(results: Results, listing: pa.Table | None = None) -> dict[str, str]:
    """Files that no family reads, by their paths, with digests of their tensors."""
    table = results.rows(["status", "digest"], FingerprintTask().schema)
    chosen = pc.and_(pc.equal(table["status"], "unsupported"), pc.is_valid(table["digest"]))
    if listing is not None:
        chosen = pc.and_(chosen, pc.is_in(table["path"], listing["path"].combine_chunks()))
    table = table.filter(chosen).sort_by("path")
    return dict(zip(table["path"].to_pylist(), table["digest"].to_pylist(), strict=True))


def _sketches(table: pa.Table, url: str) -> list[Sketch | None]:
    try:
        return [
            None if kind is None or content is None else Sketch.from_bytes(kind, content)
            for kind, content in zip(
                table["sketch_kind"].to_pylist(), table["sketch"].to_pylist(), strict=True
            )
        ]
    except ValueError:
        raise HubError(_wrong(url)) from None


def _wrong(url: str) -> str:
    return f"{url} has rows that are no fingerprints; delete the folder, and run again"


def _check_numbers(table: pa.Table, url: str) -> None:
    """16 finite numbers for each of at least one part."""
    parts, numbers = table["parts"], table["numbers"]
    counts = pc.multiply(pc.list_value_length(parts), WIDTH)
    fits = pc.and_(pc.greater(counts, 0), pc.equal(counts, pc.list_value_length(numbers)))
    sound = pc.all(fits, skip_nulls=False).as_py()
    for column in (table["shape"], table["dtype"], parts, numbers, pc.list_flatten(parts)):
        sound = sound and not column.null_count
    sound = sound and pc.all(pc.is_finite(pc.list_flatten(numbers)), skip_nulls=False).as_py()
    if len(table) and not sound:
        raise HubError(_wrong(url))


def _stack(table: pa.Table) -> Stack:
    """Rows of one shape as arrays; those with the same parts are taken together."""
    has = pc.binary_join(table["parts"].combine_chunks(), "\n").dictionary_encode()
    kinds = [text.split("\n") for text in has.dictionary.to_pylist()]
    names = list(dict.fromkeys(name for parts in kinds for name in parts))
    numbers = np.zeros((len(table), len(names), WIDTH))
    of_kind = has.indices.to_numpy()
    for kind, parts in enumerate(kinds):
        rows = np.flatnonzero(of_kind == kind)
        flat = table["numbers"].take(rows).combine_chunks().flatten().to_numpy()
        place = [names.index(name) for name in parts]
        numbers[rows[:, None], place] = flat.reshape(len(rows), len(parts), WIDTH)
    limits = [copy_limit(dtype) for dtype in table["dtype"].to_pylist()]
    return Stack(names, numbers, np.array(limits))


def load_forest(results: Results) -> Forest:
    """The kin that were found before; none if they cannot be read, or are no forest."""
    try:
        content = results.read(KIN)
        with sound(KIN), parquet.ParquetFile(io.BytesIO(content)) as opened:
            table = read_table(opened, len(content)).select(_SCHEMA.names).cast(_SCHEMA)
    except (FileNotFoundError, DamagedError):
        return Forest.empty()
    alone = pc.is_null(table["second"])
    edges = table.filter(pc.invert(alone)).to_pydict()
    forest = Forest(
        frozenset(table.filter(alone)["first"].to_pylist()),
        [Edge(*row) for row in zip(*edges.values(), strict=True)],
    )
    return forest if forest.is_sound() else Forest.empty()


def save_forest(results: Results, forest: Forest) -> None:
    """Keep what was found for the next time."""
    nodes = pa.table({"first": pa.array(sorted(forest.keys), pa.binary(16))})
    columns = zip(*forest.edges, strict=True) if forest.edges else [[] for _ in _SCHEMA]
    edges = pa.table([pa.array(c, f.type) for c, f in zip(columns, _SCHEMA, strict=True)], _SCHEMA)
    table = pa.concat_tables([edges, nodes], promote_options="default")
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="none", use_dictionary=False)
    results.replace(KIN, buffer.getvalue())
