"""Nothing is decided by the name of a family or a block: only its own table knows it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import transformer_nfn
from transformer_nfn import space
from transformer_nfn.checkpoints.families import FAMILIES
from transformer_nfn.space import Block

ROOT = Path(transformer_nfn.__file__).parent
TABLES_OF_FAMILIES = ROOT / "checkpoints" / "families"
TABLES = [*TABLES_OF_FAMILIES.rglob("*.py"), ROOT / "space" / "blocks.py"]
FAMILY_NAMES = {name for f in FAMILIES.values() for name in (f.name, *f.model_types)}
BLOCK_NAMES = {value.name for value in vars(space).values() if isinstance(value, Block)}


def literals(path: Path) -> Iterator[tuple[int, str]]:
    """All string literals of a file but docstrings."""
    tree = ast.parse(path.read_text())
    homes = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, homes) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def test_no_name_stands_outside_its_table() -> None:
    names = FAMILY_NAMES | BLOCK_NAMES
    assert len(names) > 12
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text!r}"
        for path in ROOT.rglob("*.py")
        if path not in TABLES
        for line, text in literals(path)
        if text in names
    ]
    assert not found


def imported(path: Path) -> Iterator[str]:
    """The modules that a file imports anything from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_table_is_imported_by_others() -> None:
    """`family is BERT` would need no name in quotes."""
    folder = "transformer_nfn.checkpoints.families"
    modules = {
        f"{folder}.{'.'.join(path.relative_to(TABLES_OF_FAMILIES).with_suffix('').parts)}"
        for path in TABLES_OF_FAMILIES.rglob("*.py")
    }
    assert f"{folder}.encoders.bert" in modules
    found = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in ROOT.rglob("*.py")
        if path not in TABLES
        for module in imported(path)
        if module in modules
    ]
    assert not found


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('"""gpt2"""\nname = "gpt2" if x else f"{y} bert"\n\ndef f():\n    "bert"\n')
    assert [text for _, text in literals(path) if text in FAMILY_NAMES] == ["gpt2"]
    path.write_text("import a.b\nfrom c import d\n")
    assert list(imported(path)) == ["a.b", "c", "c.d"]
