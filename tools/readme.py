"""Run the examples of README.md and compare what they print with what the page shows.

An example is a fenced `python` block whose next fenced block is a `text` block. Each runs in a
fresh interpreter, in an empty directory, with warnings as errors:

    python tools/readme.py
"""

import difflib
import re
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).resolve().parent.parent / "README.md"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
TIMEOUT = 300  # seconds for one example


class Example(NamedTuple):
    """A code block, the output shown below it, and the line on which the block starts."""

    line: int
    code: str
    shown: str


def examples(page: str) -> list[Example]:
    """Find each `python` block of a page that is followed by a `text` block."""
    blocks = list(FENCE.finditer(page))
    return [
        Example(page.count("\n", 0, code.start()) + 1, code[2], text[2])
        for code, text in pairwise(blocks)
        if (code[1], text[1]) == ("python", "text")
    ]


def complaint(example: Example) -> str | None:
    """Run one example and say what is wrong with it, or None."""
    with tempfile.TemporaryDirectory() as empty:
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", example.code],
            cwd=empty,
            capture_output=True,
            encoding="utf-8",
            timeout=TIMEOUT,
        )
    if run.returncode != 0:
        return f"exit code {run.returncode}\n{run.stderr}"
    shown, printed = example.shown.rstrip(), run.stdout.rstrip()
    if shown == printed:
        return None
    return "\n".join(
        difflib.unified_diff(
            shown.splitlines(), printed.splitlines(), "shown", "printed", lineterm=""
        )
    )


def main() -> int:
    """Check every example; the exit code is 1 if one is wrong or none is found."""
    found = examples(README.read_text(encoding="utf-8"))
    if not found:
        print(f"{README.name}: no python block followed by a text block")
        return 1
    wrong = 0
    for example in found:
        problem = complaint(example)
        if problem is not None:
            wrong += 1
            print(f"{README.name}, example at line {example.line}:\n{problem}")
    print(f"{README.name}: {len(found) - wrong} of {len(found)} examples print what is shown")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
