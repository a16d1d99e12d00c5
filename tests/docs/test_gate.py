"""The example project of docs/guides/gate.md works as its page says."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_example_project(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: another one would import all of it once more."""
    home = ROOT / "examples" / "gate"
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(home)  # as `python -m pytest` does
    code = pytest.main(["-q", "-p", "no:cacheprovider", "."])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "3 passed" in said


def test_the_page_shows_its_test() -> None:
    page = (ROOT / "docs" / "guides" / "gate.md").read_text()
    shown = page.split("```python\n")[1].split("```")[0].strip()
    lines = [line for line in shown.splitlines() if line.strip()]
    code = (ROOT / "examples" / "gate" / "test_folding.py").read_text()
    assert all(line in code for line in lines)
