"""How long the tables of families are."""

import ast
import importlib
import inspect
import pkgutil

import pytest

from transformer_nfn.checkpoints import families
from transformer_nfn.checkpoints.family import Family

_MOST_LINES = 60
_TABLES = [
    found.name
    for found in pkgutil.walk_packages(families.__path__, f"{families.__name__}.")
    if not found.ispkg
]


def _lines_of_a_table(source: str) -> int:
    """Lines that are not empty, without imports, docstrings, comments and harmless keys."""
    tree = ast.parse(source)
    left_out: list[ast.AST] = []
    for node in ast.walk(tree):
        doc = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        harmless = (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "_HARMLESS" for t in node.targets)
        ) or (isinstance(node, ast.keyword) and node.arg == "harmless")
        if doc or harmless or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.append(node)
    gone = {
        line
        for node in left_out
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)  # type: ignore[attr-defined]
    }
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") and number not in gone
        for number, line in lines
    )


@pytest.mark.parametrize("table", _TABLES)
def test_a_family_is_a_table_of_one_screen(table: str) -> None:
    module = importlib.import_module(table)
    source = inspect.getsource(module)
    assigned = {
        target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    values = {name: value for name, value in vars(module).items() if name in assigned}
    declared = [value for value in values.values() if isinstance(value, Family)]
    types = sum(max(len(family.keys), 1) for family in declared)
    assert _lines_of_a_table(source) <= _MOST_LINES * max(types, 1)
