"""Columns of small CSV files that somebody else may have written."""

import csv
import stat
from collections.abc import Sequence
from pathlib import Path

from transformer_nfn.jobs.errors import DamagedError

#: Longest CSV file that is read: a million rows of 60 characters.
MOST_BYTES = 2**26


def check_regular(path: Path, most: int = MOST_BYTES) -> int:
    """The size of a file that may be read at once.

    Raises:
        DamagedError: If it is no file (a pipe would be waited for), or longer than `most` bytes.
        OSError: If it is not there.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise DamagedError(f"{path} is no file")
    if status.st_size > most:
        raise DamagedError(f"{path} has {status.st_size:,} bytes, at most {most:,} are read")
    return status.st_size


def read_csv(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Some columns of a CSV file with a header, as text; other columns are ignored.

    Args:
        path: The file, in UTF-8.
        columns: Which must be there.
        optional: Which may be.

    Returns:
        The columns that are there, by name, with spaces around values removed.

    Raises:
        DamagedError: If a column is missing or there twice, or a line has another number of fields
            than the header.
    """
    check_regular(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = [name.strip() for name in next(lines, [])]
            places = _places(path, header, columns, optional)
            found: dict[str, list[str]] = {name: [] for name in places}
            for row in lines:
                if not row:  # an empty line
                    continue
                if len(row) != len(header):
                    raise DamagedError(
                        f"{path}, line {lines.line_num}: {len(row)} fields, the header has "
                        f"{len(header)}"
                    )
                for name, place in places.items():
                    found[name].append(row[place].strip())
    except (csv.Error, UnicodeDecodeError) as error:
        raise DamagedError(f"{path} is no CSV file in UTF-8: {error}") from None
    return found


def _places(
    path: Path, header: Sequence[str], columns: Sequence[str], optional: Sequence[str]
) -> dict[str, int]:
    places = {}
    for name in (*columns, *optional):
        count = header.count(name)
        if count > 1:
            raise DamagedError(f"{path} has the column {name} twice")
        if count:
            places[name] = header.index(name)
        elif name in columns:
            raise DamagedError(f"{path} has no column {name}; it needs {', '.join(columns)}")
    return places
