"""What each family costs: the lines of its table, and the other source files that name it.

    python tools/family_cost.py

Lines are counted without imports, docstrings, comments and the list of harmless keys.
"""

import ast
import importlib
import inspect
import pkgutil

from transformer_nfn.checkpoints import families
from transformer_nfn.checkpoints.family import Family

TABLES = [
    found.name
    for found in pkgutil.walk_packages(families.__path__, f"{families.__name__}.")
    if not found.ispkg
]


def declared_in(table: str) -> list[Family]:
    """The families that a module declares, not those that it imports."""
    module = importlib.import_module(table)
    assigned = {
        target.id
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    values = (value for name, value in vars(module).items() if name in assigned)
    return [value for value in values if isinstance(value, Family)]


def lines_of(table: str) -> int:
    """Lines that are not empty, without imports, docstrings, comments and harmless keys."""
    source = inspect.getsource(importlib.import_module(table))
    left_out: list[ast.AST] = []
    for node in ast.walk(ast.parse(source)):
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


def rows() -> list[str]:
    """A table in Markdown: what is declared, in which file, in how many lines."""
    found = []
    for table in TABLES:
        declared = declared_in(table)
        kinds = sorted({kind for family in declared for kind in family.keys})
        kinds = kinds or sorted(family.name for family in declared)
        if kinds:
            path = table.removeprefix(f"{families.__name__}.").replace(".", "/")
            found.append(f"| {', '.join(kinds)} | `{path}.py` | {lines_of(table)} |")
    return sorted(found)


if __name__ == "__main__":
    print("| model_type | table | lines |\n|---|---|---|")
    print("\n".join(rows()))
