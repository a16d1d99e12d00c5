"""Run the notebooks of `notebooks/` without Jupyter, and write or compare what their cells show.

    python tools/notebooks.py              # run them, in full, and write their outputs
    python tools/notebooks.py --check      # run them in small form, compare, write nothing
    python tools/notebooks.py A.ipynb ...  # only these

Each notebook runs in a process and an order of its own: from top to bottom. With `--check` the
environment has NOTEBOOK_SMALL=1, and a cell near the top chooses smaller sizes by it. What a cell
prints, and the value of its last line, must be what is committed, unless the cell has the tag
"varies": timings, or numbers that depend on the size. Pictures are counted, not compared.
"""

import argparse
import ast
import base64
import contextlib
import difflib
import hashlib
import io
import json
import linecache
import os
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
DPI = 80
TIMEOUT = 600  # seconds for one notebook
PLACES = [str(FOLDER.parent), tempfile.gettempdir() + os.sep, str(Path.home()) + os.sep]
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def source(cell: dict[str, Any]) -> str:
    """The text of a cell, which may be stored as one string or as lines."""
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """All cells that run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def digest(notebook: dict[str, Any]) -> str:
    """Of the code: says later whether the outputs are those of this code."""
    code = "\0".join(source(cell) for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def text(cell: dict[str, Any]) -> str:
    """What a cell shows without its pictures, each of which is a line."""
    shown = []
    for output in cell["outputs"]:
        data = output.get("data", {"text/plain": output.get("evalue", "")})  # or an error
        lines = output.get("text", data.get("text/plain", ""))
        shown.append(lines if isinstance(lines, str) else "".join(lines))
    return "\n".join(part.rstrip("\n") for part in shown)


def pictures() -> list[dict[str, Any]]:
    """All figures that are open, as outputs; none is open afterwards."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    pyplot = sys.modules["matplotlib.pyplot"]
    found = []
    for number in pyplot.get_fignums():
        figure, file = pyplot.figure(number), io.BytesIO()
        figure.savefig(
            file, format="png", dpi=DPI, bbox_inches="tight", metadata={"Software": None}
        )
        png = base64.b64encode(file.getvalue()).decode()
        data = {"image/png": png, "text/plain": ["<Figure>"]}
        found.append({"output_type": "display_data", "data": data, "metadata": {}})
    pyplot.close("all")
    return found


def execute(cell: dict[str, Any], number: int, names: dict[str, Any]) -> None:
    """Run one cell and give it its outputs; what it raises is for the caller."""
    code, file, printed = source(cell), f"<cell {number}>", io.StringIO()
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    body = ast.parse(code, file).body
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), file, "exec"), names)
        if last is not None:
            value = eval(compile(last, file, "eval"), names)
    cell["execution_count"], cell["outputs"] = number, []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
    if value is not None and not code.rstrip().endswith(";"):
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        output = {"output_type": "execute_result", "data": data, "metadata": {}}
        cell["outputs"].append({**output, "execution_count": number})
    cell["outputs"] += pictures()


def run(path: Path, out: Path) -> int:
    """Run all cells in this process; the notebook with its outputs goes to another file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    main = sys.modules["__main__"] = types.ModuleType("__main__")  # as in Jupyter, for pickle
    for number, cell in enumerate(code_cells(notebook), start=1):
        try:
            execute(cell, number, main.__dict__)
        except BaseException:
            print(f"code cell {number} raises\n{traceback.format_exc()}", file=sys.stderr)
            return 1
    notebook["metadata"] = {"kernelspec": KERNEL, "ran": digest(notebook)}
    notebook["metadata"]["language_info"] = {"name": "python"}
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    for number, cell in enumerate(notebook["cells"]):
        cell.setdefault("id", f"cell-{number:02}")
        cell["source"] = source(cell).splitlines(keepends=True)
    # As Jupyter writes it: a line for each line, so that a difference is as small as the change.
    laid_out = json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True)
    out.write_text(laid_out + "\n", encoding="utf-8")
    return 0


def complaints(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What is committed and does not hold."""
    cells = code_cells(old)
    if any(cell.get("execution_count") is None for cell in cells):
        return ["a cell was never run"]
    if old["metadata"].get("ran") != digest(old):
        return ["its code changed after it was run"]
    found = []
    for number, (cell, again) in enumerate(zip(cells, code_cells(new), strict=True), start=1):
        found += [
            f"code cell {number} shows a path of the machine it ran on: {place}"
            for place in PLACES
            if place in text(cell)
        ]
        if "varies" not in cell["metadata"].get("tags", []) and text(cell) != text(again):
            lines = text(cell).splitlines(), text(again).splitlines()
            change = difflib.unified_diff(*lines, "committed", "now", lineterm="")
            found.append(f"code cell {number} shows something else\n" + "\n".join(change))
    return found


def judge(path: Path, check: bool) -> list[str]:
    """Run one notebook in a fresh process; write it, or say what is wrong with it."""
    env = {name: value for name, value in os.environ.items() if name != "NOTEBOOK_SMALL"}
    env |= {"MPLBACKEND": "agg"} | ({"NOTEBOOK_SMALL": "1"} if check else {})
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / path.name
        words = [sys.executable, __file__, "--run", str(out), str(path.resolve())]
        try:
            done = subprocess.run(
                words, cwd=path.parent, env=env, capture_output=True, text=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            return [f"it takes more than {TIMEOUT} seconds"]
        if done.returncode:
            return [done.stderr.strip()]
        ran = out.read_text(encoding="utf-8")
    if check:
        return complaints(json.loads(path.read_text(encoding="utf-8")), json.loads(ran))
    path.write_text(ran, encoding="utf-8")
    return []


def main() -> int:
    """Run what is asked for; the exit code is 1 if a notebook is wrong or none is found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("notebooks", type=Path, nargs="*")
    parser.add_argument("--check", action="store_true", help="small form; write nothing")
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)  # one, in this process
    arguments = parser.parse_args()
    if arguments.run:
        return run(arguments.notebooks[0], arguments.run)
    paths = arguments.notebooks or sorted(FOLDER.glob("*.ipynb"))
    wrong = 0
    for path in paths:
        problems = judge(path, arguments.check)
        wrong += bool(problems)
        print("\n".join(f"{path.name}: {line}" for line in problems or ["as it should be"]))
    print(f"{len(paths) - wrong} of {len(paths)} notebooks run and show what they should")
    if wrong and arguments.check:
        print("If the new output is right: python tools/notebooks.py, look at it, and commit it.")
    return 1 if wrong or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
