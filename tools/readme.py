"""Run the examples of README.md and compare what they print with what the page shows.

All run in one directory that is empty at first, from the top of the page to its end: of each fenced
`sh` block the lines that call `tnfn`, and each fenced `python` block, in a fresh interpreter with
warnings as errors. A `text` block below a `python` block is what that prints.

    python tools/readme.py
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).resolve().parent.parent / "README.md"
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
TIMEOUT = 900  # seconds for one example


class Example(NamedTuple):
    """What to run, the output shown below it if any, and the line on which the block starts."""

    line: int
    command: list[str]
    shown: str | None


def examples(page: str) -> Iterator[Example]:
    """Find what a page tells its reader to run."""
    blocks = list(FENCE.finditer(page))
    for block, following in pairwise([*blocks, None]):
        assert block is not None
        line = page.count("\n", 0, block.start()) + 1
        if block[1] == "python":
            shown = following[2] if following is not None and following[1] == "text" else None
            yield Example(line, [sys.executable, "-W", "error", "-c", block[2]], shown)
        elif block[1] == "sh":
            calls = [call for call in block[2].splitlines() if call.startswith("tnfn ")]
            if calls:
                yield Example(line, ["bash", "-ec", "\n".join(calls)], None)


def complaint(example: Example, folder: str) -> str | None:
    """Run one example and say what is wrong with it, or None."""
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = subprocess.run(
        example.command,
        cwd=folder,
        env={
            **os.environ,
            "PATH": here,
            "TNFN_MODELS": f"{folder}/.models",  # nothing is left behind in the user's folders
            "XDG_CACHE_HOME": f"{folder}/.cache",
        },
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
    )
    if run.returncode != 0:
        return f"exit code {run.returncode}\n{run.stderr}"
    if example.shown is None:
        return None
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
    found = list(examples(README.read_text(encoding="utf-8")))
    if not found:
        print(f"{README.name}: nothing to run")
        return 1
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for example in found:
            problem = complaint(example, folder)
            if problem is not None:
                wrong += 1
                print(f"{README.name}, example at line {example.line}:\n{problem}")
    print(f"{README.name}: {len(found) - wrong} of {len(found)} examples do what the page says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
