"""Tables from Parquet files that somebody else may have written."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from transformer_nfn.jobs.errors import DamagedError

#: Most bytes that a table may take: so many times its file, and this much more. A file of a
#: kilobyte can ask for a terabyte; sound ones are compressed some ten times.
MOST_TIMES = 100
MOST_MORE = 2**28


@contextmanager
def sound(where: str) -> Iterator[None]:
    """Errors that are a file's fault become a DamagedError; those of the system stay.

    Args:
        where: What the error calls it.
    """
    try:
        yield
    # Not the file's name twice, nor lines: pyarrow quotes what it found.
    except (pa.ArrowException, KeyError, TypeError, OverflowError, UnicodeError) as error:
        raise DamagedError(f"{where} is not sound: {_short(error)}") from None
    except OSError as error:
        # pyarrow says OSError of files that are no Parquet as well, but without a number.
        if error.errno is not None or isinstance(error, FileNotFoundError):
            raise
        raise DamagedError(f"{where} is not sound: {_short(error)}") from None


def read_table(
    parquet: pq.ParquetFile, size: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """A whole file, or some of its columns; each name once, and every value what its type says.

    Args:
        parquet: Open, and used within `sound`.
        size: Of the file in bytes.
        columns: Which of its columns; those that it does not have are left out.

    Raises:
        DamagedError: If a column is there twice, or it would take far more memory than the file.
    """
    schema, metadata = parquet.schema_arrow, parquet.metadata
    wanted = [name for name in schema.names if columns is None or name in columns]
    if len(set(wanted)) < len(wanted):
        raise DamagedError("it has a column twice")
    # Nulls take no bytes in a file, and their full width in memory.
    width = sum(_width(schema.field(name).type) for name in wanted)
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    stated = sum(max(group.total_byte_size, 0) for group in groups)
    needed = metadata.num_rows * width + stated
    if needed > MOST_TIMES * size + MOST_MORE:
        raise DamagedError(f"its {size} bytes would become {needed}")
    table = parquet.read(columns=wanted)
    table.validate(full=True)  # offsets, and that text is UTF-8: the reader does not look
    return table


def _width(kind: pa.DataType) -> int:
    """Bytes of a value, of text and lists those of the offset."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_width(kind.field(number).type) for number in range(kind.num_fields))
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:
        return 8


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
