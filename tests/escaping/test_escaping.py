import sys
import unicodedata
from io import BytesIO

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from pyarrow import csv

from transformer_nfn.escaping import (
    for_picture,
    for_spreadsheet,
    for_terminal,
    from_spreadsheet,
)

# ------------------------------------------------------------------------------------- terminals


def test_no_character_that_steers_a_terminal_is_left() -> None:
    steering = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    left = for_terminal(every)
    assert not [one for one in left if unicodedata.category(one) in steering]
    assert for_terminal(left) == left


@pytest.mark.parametrize("text", ["a b", "naïve/τ 模型 [red]", "$x$", "\\n"])
def test_what_is_printed_stays(text: str) -> None:
    assert for_terminal(text) == text


# -------------------------------------------------------------------------------------- pictures

FORMULAS = (
    r"$\frac{",
    r"$\frac{$",
    r"$$",
    r"\$\frac{$",
    r"$a$",
    r"a\$b\\$\x{$",
    "$\n$\x1b",
    "$" * 9,
)


def draw(text: str) -> tuple[str, bytes]:
    """What matplotlib makes of a text, and the picture."""
    figure = Figure()
    label = figure.text(0, 0.5, text)
    picture = BytesIO()
    figure.savefig(picture, format="png")
    return label._preprocess_math(text)[0], picture.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_text_is_drawn_as_it_is(text: str) -> None:
    assert draw(for_picture(text))[0] == for_terminal(text)


def test_without_it_a_formula_is_read() -> None:
    with pytest.raises(ValueError, match="frac"):
        draw(r"$\frac{$")


# ---------------------------------------------------------------------------------- spreadsheets

CELLS = [
    "=1+1",
    "+1",
    "-1",
    "@a",
    "\t=1",
    "\r=1",
    "\n=1",
    "'=1",
    "''-",
    "＝1",
    "a=1",
    "'a'",
    "",
    None,
]
DANGEROUS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def test_no_text_begins_as_a_formula_and_numbers_stay() -> None:
    size = len(CELLS)
    columns = {"text": pa.array(CELLS), "large": pa.array(CELLS, pa.large_string())}
    numbers = {"far": [-0.5] * size, "count": [-3] * size}
    table = pa.table({**columns, **numbers})
    safe = for_spreadsheet(table)
    assert safe.schema == table.schema
    for name in columns:
        found = safe[name].to_pylist()
        assert not [text for text in found if text is not None and text.startswith(DANGEROUS)]
        assert found[-4:] == CELLS[-4:]
        assert from_spreadsheet(safe[name]).to_pylist() == CELLS
    file = BytesIO()
    csv.write_csv(safe, file)
    again = csv.read_csv(
        BytesIO(file.getvalue()), parse_options=csv.ParseOptions(newlines_in_values=True)
    )
    assert again["far"].to_pylist() == numbers["far"]
    assert again["count"].to_pylist() == numbers["count"]


@given(st.lists(st.text(st.sampled_from("'=+-@\t\r\na＝"), max_size=6), min_size=1))
def test_the_way_back(texts: list[str]) -> None:
    safe = for_spreadsheet(pa.table({"path": pa.array(texts, pa.string())}))["path"]
    assert not [text for text in safe.to_pylist() if text.startswith(DANGEROUS)]
    assert from_spreadsheet(safe).to_pylist() == texts
