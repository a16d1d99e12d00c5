"""The house: which folders of the package import which, how many files they hold, circles if any.

python tools/house.py                      # a table; exit code 1 if there is a circle of files
python tools/house.py --out house.svg      # and a drawing
python tools/house.py --source OTHER/src   # of another checkout
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGE = "transformer_nfn"
_FULL = 15


def modules(source: Path) -> dict[str, Path]:
    """All modules of the package by their dotted names."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        words = path.relative_to(source).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a file imports when it is loaded."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
    return found & set(known)


def folder(module: str, known: dict[str, Path]) -> str:
    """The folder of a module, without the package's name."""
    home = module if known[module].name == "__init__.py" else module.rpartition(".")[0]
    return home.removeprefix(PACKAGE).lstrip(".") or "."


def drawing(files: Counter[str], edges: dict[str, set[str]], path: Path) -> None:
    """Folders in rows, each above all that it imports."""
    from matplotlib.figure import Figure

    level: dict[str, int] = {}
    for name in TopologicalSorter({name: edges[name] for name in files}).static_order():
        level[name] = 1 + max((level[other] for other in edges[name]), default=-1)
    rows = defaultdict(list)
    for name in sorted(level):
        rows[level[name]].append(name)
    places = {
        name: ((number + 0.5) / len(row), height)
        for height, row in rows.items()
        for number, name in enumerate(row)
    }
    figure = Figure(figsize=(13, 1.1 * len(rows) + 1), layout="constrained")
    axes = figure.subplots()
    axes.axis("off")
    for name in files:
        for other in edges[name]:
            style = {"arrowstyle": "-|>", "color": "0.75", "lw": 0.7, "shrinkA": 12, "shrinkB": 12}
            axes.annotate("", places[other], places[name], arrowprops=style)
    for name, (x, y) in places.items():
        full = files[name] > _FULL
        box = {"boxstyle": "round", "fc": "#f6d5b5" if full else "#dcebf7", "ec": "0.4"}
        text = f"{name.replace('.', '/')}\n{files[name]}"
        axes.text(x, y, text, ha="center", va="center", fontsize=8, bbox=box, parse_math=False)
    axes.set(xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4))
    axes.set_title(f"Folders and their files; orange: more than {_FULL}. Arrows: imports")
    figure.savefig(path)


def main() -> int:
    """The table, and the drawing if it is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "src")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    known = modules(arguments.source)
    uses = {name: imports(path, known) - {name} for name, path in known.items()}
    files = Counter(folder(name, known) for name in known)
    edges: dict[str, set[str]] = defaultdict(set)
    for name, others in uses.items():
        edges[folder(name, known)] |= {folder(other, known) for other in others}
    for name in files:
        # A folder's files may import each other, and a room's door all of its own folders.
        edges[name] -= {other for other in files if other == name or other.startswith(f"{name}.")}
    for name in sorted(files):
        print(f"{files[name]:>3} {name:<22} {', '.join(sorted(edges[name]))}")
    print(f"{len(known)} files, {sum(map(len, uses.values()))} imports between them")
    if arguments.out:
        drawing(files, edges, arguments.out)
    try:
        tuple(TopologicalSorter(uses).static_order())
    except CycleError as error:
        print("a circle: " + " -> ".join(error.args[1]))
        return 1
    print("no circle")
    return 0


if __name__ == "__main__":
    sys.exit(main())
