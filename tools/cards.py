"""Copy the data cards of built zoos into the documentation.

python tools/cards.py ../zoos/mnist-small ../zoos/agnews-small
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs" / "zoos"
FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)


def main() -> int:
    """Copy card and histogram of each zoo named on the command line."""
    DOCS.mkdir(exist_ok=True)
    for zoo in map(Path, sys.argv[1:]):
        card = (zoo / "README.md").read_text(encoding="utf-8")
        name = zoo.name
        page = FRONT_MATTER.sub("", card).replace("(accuracy.png)", f"({name}.png)")
        (DOCS / f"{name}.md").write_text(page, encoding="utf-8")
        (DOCS / f"{name}.png").write_bytes((zoo / "accuracy.png").read_bytes())
        print(f"{name}: {DOCS / name}.md and .png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
