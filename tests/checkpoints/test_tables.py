"""How long the tables of families are."""

import pytest

from tools.family_cost import TABLES, declared_in, lines_of

_MOST_LINES = 60


@pytest.mark.parametrize("table", TABLES)
def test_a_family_is_a_table_of_one_screen(table: str) -> None:
    types = sum(max(len(family.keys), 1) for family in declared_in(table))
    assert lines_of(table) <= _MOST_LINES * max(types, 1)
