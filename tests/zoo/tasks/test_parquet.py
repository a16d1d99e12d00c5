from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.zoo.tasks.samples import write_parquet
from transformer_nfn.zoo.tasks import DataError
from transformer_nfn.zoo.tasks.parquet import read_columns

TYPES = {"text": pa.string(), "label": pa.int64()}


def test_columns_are_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f", other=[1, 2], label=[3, 4], text=["a", "b"])
    assert read_columns(path, TYPES, 2) == {"text": ["a", "b"], "label": [3, 4]}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"]}, r"has columns \['text'\], \['label'\] are missing"),
        ({"text": ["a", None], "label": [3, 4]}, "1 empty values in column 'text'"),
        ({"text": ["a"] * 3, "label": [3] * 3}, r"has 3 rows, expected 1\.\.2"),
        ({"text": [], "label": []}, r"has 0 rows"),
        ({"text": ["a"], "label": ["sports"]}, "not the Parquet file expected here"),
        ({"text": [{"a": 1}], "label": [1]}, "not the Parquet file expected here"),
    ],
)
def test_other_columns_are_refused(
    tmp_path: Path, columns: dict[str, list[Any]], message: str
) -> None:
    path = write_parquet(tmp_path / "f", **columns)
    with pytest.raises(DataError, match=message):
        read_columns(path, TYPES, 2)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match="not the Parquet file expected here"):
        read_columns(tmp_path / "f", TYPES, 2)
