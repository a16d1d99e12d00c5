"""Columns of a Parquet file from elsewhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]

from transformer_nfn.jobs import DamagedError, read_table, sound
from transformer_nfn.zoo.tasks.errors import DataError


def read_columns(path: Path, types: Mapping[str, Any], most: int) -> dict[str, list[Any]]:
    """The values of some columns, without nulls.

    Args:
        path: The file.
        types: The columns wanted, with the Arrow type that each is cast to.
        most: How many rows the file may have: it may be somebody else's.

    Raises:
        DataError: If it is no Parquet file, has other columns, nulls, or too many rows.
    """
    try:
        with sound(str(path)), pq.ParquetFile(path) as file:
            rows = file.metadata.num_rows
            if not 1 <= rows <= most:
                raise DataError(f"{path} has {rows} rows, expected 1..{most}")
            missing = sorted(set(types) - set(file.schema_arrow.names))
            if missing:
                raise DataError(
                    f"{path} has columns {file.schema_arrow.names}, {missing} are missing"
                )
            table = read_table(file, path.stat().st_size, list(types))
            columns = {name: table[name].cast(kind) for name, kind in types.items()}
    except (DamagedError, OSError) as error:
        raise DataError(f"{path} is not the Parquet file expected here: {error}") from error
    for name, column in columns.items():
        if column.null_count:
            raise DataError(f"{path} has {column.null_count} empty values in column {name!r}")
    return {name: column.to_pylist() for name, column in columns.items()}
