"""The example project of docs/guides/gate.md works as its page says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_example_project() -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(
        words, cwd=ROOT / "examples" / "gate", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_page_shows_its_test() -> None:
    page = (ROOT / "docs" / "guides" / "gate.md").read_text()
    shown = page.split("```python\n")[1].split("```")[0].strip()
    lines = [line for line in shown.splitlines() if line.strip()]
    code = (ROOT / "examples" / "gate" / "test_folding.py").read_text()
    assert all(line in code for line in lines)
