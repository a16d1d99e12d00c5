"""Files and what links them, as a drawing."""

from collections.abc import Sequence
from typing import NamedTuple

from transformer_nfn.escaping import for_page

#: Height of a row and width of a level, in pixels of the page; width of a letter.
_ROW, _LEVEL, _LETTER = 20, 26, 7


class Twig(NamedTuple):
    """One file of a tree.

    Attributes:
        name: What it is called.
        note: How it is linked to the one above it.
        depth: How many links away from the root it is.
        above: Which of the twigs it is linked to; None of a root.
        copy: Whether it is a copy of that one.
    """

    name: str
    note: str
    depth: int
    above: int | None
    copy: bool


def draw_tree(twigs: Sequence[Twig]) -> str:
    """A piece of a page: a row for each file, below the one it is linked to."""
    height = _ROW * len(twigs)
    longest = max((_LEVEL * t.depth + _LETTER * len(t.name + t.note) for t in twigs), default=0)
    pieces = [f'<svg class="tree" width="{longest + 60}" height="{height}" role="img">']
    for row, twig in enumerate(twigs):
        x, y = 10 + _LEVEL * twig.depth, _ROW * row + _ROW // 2
        if twig.above is not None:
            top = _ROW * twig.above + _ROW // 2
            pieces.append(f'<path d="M{x - _LEVEL} {top}V{y}H{x}"/>')
    for row, twig in enumerate(twigs):
        x, y = 10 + _LEVEL * twig.depth, _ROW * row + _ROW // 2
        kind = "copy" if twig.copy else "root" if twig.above is None else "related"
        note = f' <tspan class="note">{for_page(twig.note)}</tspan>' if twig.note else ""
        pieces.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>')
        pieces.append(f'<text x="{x + 10}" y="{y + 4}">{for_page(twig.name)}{note}</text>')
    return "".join(pieces) + "</svg>"
