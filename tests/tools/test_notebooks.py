import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tools import notebooks


def cell(code: str, *tags: str) -> dict[str, Any]:
    metadata = {"tags": list(tags)} if tags else {}
    fields = {"execution_count": None, "outputs": [], "metadata": metadata}
    return {"cell_type": "code", "source": code, **fields}


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["notebooks.py", *map(str, words)])
    return notebooks.main()


def written(folder: Path, *cells: dict[str, Any]) -> Path:
    path = folder / "a.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}}))
    return path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


SMALL = "import os\nsmall = 'NOTEBOOK_SMALL' in os.environ"


def test_what_it_writes_passes_its_own_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawing = "import matplotlib.pyplot as plt\nplt.plot([1, 2]);"
    markdown = {"cell_type": "markdown", "metadata": {}, "source": "# Title"}
    cells = [markdown, cell(SMALL), cell("print('printed')\n1 + 1"), cell(drawing), cell("None")]
    path = written(tmp_path, *cells, cell("small", "varies"))
    assert call(monkeypatch, "--check", path) == 1
    assert "a cell was never run" in capsys.readouterr().out
    assert call(monkeypatch, path) == 0
    first = path.read_text()
    assert call(monkeypatch, path) == 0
    assert path.read_text() == first
    assert call(monkeypatch, "--check", path) == 0
    assert path.read_text() == first
    notebook = json.loads(first)
    ids = [one["id"] for one in notebook["cells"]]
    assert len(set(ids)) == len(ids)
    _, values, picture, nothing, varies = notebooks.code_cells(notebook)
    assert [one["output_type"] for one in values["outputs"]] == ["stream", "execute_result"]
    assert notebooks.text(values) == "printed\n2"
    assert list(picture["outputs"][0]["data"]) == ["image/png", "text/plain"]
    assert len(picture["outputs"]) == 1  # what plt.plot returns is not shown
    assert nothing["outputs"] == []
    assert notebooks.text(varies) == "False"


def test_a_cell_that_raises_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, cell("x = 1"), cell("y = 2\nx / 0  # here"))
    before = path.read_text()
    assert call(monkeypatch, path) == 1
    shown = capsys.readouterr().out
    assert "code cell 2 raises" in shown
    assert "x / 0  # here" in shown
    assert "ZeroDivisionError" in shown
    assert path.read_text() == before


def test_another_output_is_reported_unless_it_may_vary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, cell(SMALL), cell("print(f'{small=}')", "varies"))
    assert call(monkeypatch, path) == 0
    assert call(monkeypatch, "--check", path) == 0
    path = written(tmp_path, cell(SMALL), cell("print(f'{small=}')"))
    assert call(monkeypatch, path) == 0
    assert call(monkeypatch, "--check", path) == 1
    shown = capsys.readouterr().out
    assert "-small=False\n+small=True" in shown
    assert "python tools/notebooks.py" in shown


def test_code_that_changed_after_it_was_run_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, cell("a = 'before'"))
    assert call(monkeypatch, path) == 0
    edit(path, "before", "after")
    assert call(monkeypatch, "--check", path) == 1
    assert "its code changed after it was run" in capsys.readouterr().out


def test_a_path_of_this_machine_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, cell("import tempfile\ntempfile.gettempdir() + '/a'", "varies"))
    assert call(monkeypatch, path) == 0
    assert call(monkeypatch, "--check", path) == 1
    assert "shows a path of the machine" in capsys.readouterr().out


def test_no_notebook_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    assert call(monkeypatch) == 1
