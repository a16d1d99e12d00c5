"""What `tnfn` prints at a terminal, as pictures: docs/pictures/terminal-*.svg.

python tools/real_weights.py FOLDER minilm tuned
python docs/pictures/terminal.py FOLDER
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).parent
COLUMNS = 100
#: As rich has it, without the font that it would load from the network.
FORMAT = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def draw(name: str, words: list[str], folder: Path) -> None:
    """Run a command in a folder, and draw what it says."""
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["tnfn", *words], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text(f"$ tnfn {' '.join(words)}", style="bold"))
        console.print(Text.from_ansi(done.stdout.rstrip()))
        console.save_svg(str(HERE / f"terminal-{name}.svg"), title="tnfn", code_format=FORMAT)


def main() -> None:
    """Draw the three commands that a stranger meets first."""
    real = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        for name, of in (("MiniLM", "minilm"), ("tuned", "tuned")):
            (folder / name).symlink_to(real / of)
        moved = ["tnfn", "reparam", "MiniLM", "--out", "disguise", "--seed", "1"]
        subprocess.run(moved, cwd=folder, check=True, capture_output=True)
        draw("same", ["same", "MiniLM", "disguise", "--seed", "1"], folder)
        draw("kin", ["kin", "tuned", "MiniLM"], folder)
        draw("inspect", ["inspect", "MiniLM"], folder)


if __name__ == "__main__":
    main()
