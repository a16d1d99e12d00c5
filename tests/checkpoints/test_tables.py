"""How long the tables of families are."""

from pathlib import Path

import pytest

from tools.family_cost import TABLES, declared_in, lines_of, rows

_MOST_LINES = 60


@pytest.mark.parametrize("table", TABLES)
def test_a_family_is_a_table_of_one_screen(table: str) -> None:
    types = sum(max(len(family.keys), 1) for family in declared_in(table))
    assert lines_of(table) <= _MOST_LINES * max(types, 1)


def test_the_page_says_what_each_costs() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "models.md"
    assert set(rows()) <= set(page.read_text().splitlines()), "python tools/family_cost.py"
