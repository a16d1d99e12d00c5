"""Write docs/reference/terms.md, the rows of every layer, from the declarations; or check it.

python tools/terms.py
python tools/terms.py --check
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from transformer_nfn.layers import CONSTANT, Row, equivariant_rows, invariant_rows
from transformer_nfn.space import BLOCKS, GLOSSARY, PAPER, Block

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "terms.md"

HEAD = """# Terms of the layers

<!-- Written by tools/terms.py from the declarations in transformer_nfn.space. Do not edit. -->

Each row of a table is one term of a layer: it reads the source, sums it over the bracketed axes,
keeps the tied axes, multiplies by its parameter and writes the same value along the broadcast axes.
Primed axes of a parameter belong to the target. Every row has such a parameter for each block of
the network. `EquivariantLayer.row_parameters()` and `InvariantLayer.row_parameters()` give them by
the names in the first column.

Why a row is equivariant can be seen: no permuted and no linear axis occurs in a parameter, and
every linear axis is tied. That none is missing is arithmetic, and checked by a null-space
computation in `tests/layers/test_completeness.py`: a pair of tensors whose linear axes differ
(stars count) has no row; any other has one for each set of axes that can be tied.

The last column is the coefficient of the paper's formulas, sections "Equivariant Layers with bullet
notation" and "Invariant Layers with bullet notation"; where the paper numbers several coefficients
of a pair, the number stands behind it.
"""

#: How the paper writes our tensors: as a target, and in the index of a coefficient.
TARGETS = {
    "Q": "[E(W)]^(Q:i)",
    "K": "[E(W)]^(K:i)",
    "V": "[E(W)]^(V:i)",
    "O": "[E(W)]^(O:i)",
    "A": "[E(W)]^(A)",
    "B": "[E(W)]^(B)",
    "bA": "[E(b)]^(A)",
    "bB": "[E(b)]^(B)",
    "I": "I(U)",
}
UPPER = {
    "Q": "(Q:•):j,•",
    "K": "(K:•):j,•",
    "V": "(V:•):j,•",
    "O": "(O:•):•,•",
    "A": "(A):•,•",
    "B": "(B):•,k",
    "bA": "(A):•",
    "bB": "(B):k",
    "I": "",
}
LOWER = {
    "QK": "(QK,•):p,q",
    "VO": "(VO,•):p,•",
    "Q": "(Q:•):p,•",
    "K": "(K:•):p,•",
    "V": "(V:•):p,•",
    "O": "(O:•):•,•",
    "A": "(A):•,•",
    "B": "(B):•,q",
    "bA": "(A):•",
    "bB": "(B):q",
}


def coefficient(row: Row, rows: Sequence[Row]) -> str:
    """The paper's Φ for a row of its block."""
    pair = [r.name for r in rows if (r.target, r.source) == (row.target, row.source)]
    number = f", no. {pair.index(row.name) + 1}" if len(pair) > 1 else ""
    upper = f"^{UPPER[row.target]}" if UPPER[row.target] else ""
    if row.source == CONSTANT:
        return f"`Φ{upper or '_1'}`"
    return f"`Φ{upper}_{LOWER[row.source]}`{number}"


def table(block: Block, rows: Sequence[Row]) -> Iterator[str]:
    """The rows of one layer, target by target."""
    paper = " in the paper |" if block is PAPER else ""
    yield f"| row | tied | summed | broadcast | parameter |{paper}"
    yield "|---|---|---|---|---|" + ("---|" if paper else "")
    for target, members in groupby(rows, key=lambda row: row.target):
        for row in members:
            cells = [f"`{row.name}`"]
            cells += [" ".join(axes) or "–" for axes in (row.tied, row.summed, row.broadcast)]
            cells.append(f"`{row.parameter}`")
            if paper:
                cells.append(f"`{TARGETS[target]}`: {coefficient(row, rows)}")
            yield "| " + " | ".join(cells) + " |"


def page() -> str:
    """The whole page."""
    lines = [HEAD, "## Letters", "", "| letter | meaning |", "|---|---|"]
    lines += [f"| `{letter}` | {meaning} |" for letter, meaning in GLOSSARY.items()]
    for block in BLOCKS.values():
        equivariant, invariant = equivariant_rows(block), invariant_rows(block)
        lines += ["", f"## Block `{block.name}`", ""]
        declared = [
            *(f"{name}: {' '.join(map(str, axes))}" for name, axes in block.tensors.items()),
            *(f"{name} = {product}" for name, product in block.products.items()),
        ]
        lines += ["```text", *declared, "```", ""]
        lines += [f"### Equivariant layer of `{block.name}`: {len(equivariant)} rows", ""]
        lines += [*table(block, equivariant), ""]
        lines += [f"### Invariant layer of `{block.name}`: {len(invariant)} rows", ""]
        lines += table(block, invariant)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the page, or with --check say whether it is fresh."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    options = parser.parse_args()
    fresh = page()
    if not options.check:
        PAGE.write_text(fresh, encoding="utf-8")
        print(f"wrote {PAGE.name}")
        return 0
    if not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != fresh:
        print(f"{PAGE.relative_to(ROOT)} is stale; run: python tools/terms.py")
        return 1
    print(f"{PAGE.relative_to(ROOT)} is fresh")
    return 0


if __name__ == "__main__":
    sys.exit(main())
