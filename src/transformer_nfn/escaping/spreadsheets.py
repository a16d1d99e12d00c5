"""Cells of CSV files that a spreadsheet shows and does not compute.

A cell that begins with one of some characters is a formula to most programs, and a formula may send
what stands in other cells elsewhere or start a program. An apostrophe before it makes it text.
"""

from typing import Any

#: What makes a formula of a cell, also after apostrophes: so that none is taken away that the text
#: has itself. The last four are the wide forms, which some programs take for the plain ones.
_FORMULA = "'*[=+\\-@\t\r\n＝＋－＠]"


def for_spreadsheet(table: Any) -> Any:
    """An Arrow table for a CSV file: an apostrophe stands before text that looks like a formula.

    Numbers stay numbers, negative ones too.

    Example:
        >>> import pyarrow as pa
        >>> for_spreadsheet(pa.table({"path": ["=1+1", "a=1"], "far": [-0.5, 2.0]})).to_pylist()
        [{'path': "'=1+1", 'far': -0.5}, {'path': 'a=1', 'far': 2.0}]
    """
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            safe = pc.replace_substring_regex(table.column(number), f"^({_FORMULA})", r"'\1")
            table = table.set_column(number, field, safe)
    return table


def from_spreadsheet(texts: Any) -> Any:
    """A column of text as it was before `for_spreadsheet`.

    Example:
        >>> import pyarrow as pa
        >>> from_spreadsheet(pa.array(["'=1+1", "'a'", "-1"])).to_pylist()
        ['=1+1', "'a'", '-1']
    """
    import pyarrow.compute as pc

    return pc.replace_substring_regex(texts, f"^'({_FORMULA})", r"\1")
