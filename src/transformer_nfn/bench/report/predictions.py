"""Every prediction behind a report, one small file for each zoo: its pages follow without a fit."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.protocol.record import read_record
from transformer_nfn.bench.report.pages.page import file_name
from transformer_nfn.jobs import DamagedError, check_regular, read_table, sound

#: The folder of these files in a report.
PREDICTIONS = "predictions"
#: Key of the records in a file's metadata, in the order of its cells.
_RECORDS = b"transformer_nfn.bench.records"
#: The column that says which of the records a row belongs to.
_CELL = "cell"
#: Text that stands again in every cell.
_TEXTS = ("run_id", "twins", "checkpoint")


def write_predictions(cells: Sequence[Finished], home: Path) -> list[Path]:
    """Write the rows and records of finished cells; the files.

    Args:
        cells: Of whatever zoos.
        home: The folder of the report.
    """
    by_zoo: dict[str, list[Finished]] = {}
    for cell in cells:
        name = file_name(cell.record["zoo"], cell.record["track"])
        by_zoo.setdefault(name, []).append(cell)
    folder = home / PREDICTIONS
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, some in by_zoo.items():
        tables = [
            cell.table.replace_schema_metadata(None).append_column(
                _CELL, pa.array(np.full(len(cell.table), number, dtype=np.int32))
            )
            for number, cell in enumerate(some)
        ]
        records = json.dumps([cell.record for cell in some]).encode()
        # What only some cells have, such as predictions after a group element, is null in others.
        # A model of one's own may say float32.
        whole = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
        path = folder / f"{name}.parquet"
        # Under another name first: an interrupted report must not cost what was published before.
        temporary = path.with_suffix(".writing")
        pq.write_table(
            whole.replace_schema_metadata({_RECORDS: records}),
            temporary,
            row_group_size=len(whole),
            use_dictionary=list(_TEXTS),
            compression="zstd",
        )
        temporary.replace(path)
        written.append(path)
    return written


def read_predictions(home: str | Path) -> list[Finished]:
    """The finished cells that a report was made of; none if it has no such files.

    Raises:
        BenchError: If a file is damaged, or something else.
    """
    found = []
    for path in sorted((Path(home) / PREDICTIONS).glob("*.parquet")):
        try:
            found += _read(path)
        except (DamagedError, BenchError) as error:
            raise BenchError(f"{path} does not hold the predictions of a report: {error}") from None
    return found


def _read(path: Path) -> list[Finished]:
    size = check_regular(path)
    with sound("the file"), pq.ParquetFile(str(path)) as parquet:
        table = read_table(parquet, size)
    try:
        records = json.loads((table.schema.metadata or {}).get(_RECORDS, b""))
    except (ValueError, RecursionError):
        raise BenchError("its records are no JSON") from None
    there = _CELL in table.column_names and pa.types.is_integer(table.schema.field(_CELL).type)
    if not isinstance(records, list) or not there:
        raise BenchError("it has no list of records, or does not say which rows are whose")
    whose = table.column(_CELL).to_numpy()
    found = []
    for number, record in enumerate(records):
        rows = table.filter(pa.array(whose == number)).drop_columns([_CELL])
        empty = [name for name in rows.column_names if rows[name].null_count == len(rows)]
        rows = rows.drop_columns(empty)
        found.append(Finished(read_record(json.dumps(record).encode(), rows), rows))
    return found
