"""The page of `tnfn kin`: the answer, blocks against blocks, what keeps its place."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_nfn.cli.pages.common import write_page

if TYPE_CHECKING:
    from transformer_nfn.kinship import Kin, NetKin

#: A probability of 10^-60 and one of 10^-600 are shown alike.
_LEAST = -60.0


def write_kin(
    path: Path,
    names: tuple[str, str],
    found: "Kin",
    lines: Sequence[tuple[str, str]],
    table_of: "Callable[[NetKin], tuple[tuple[str, ...], list[tuple[str, ...]]]]",
) -> None:
    """Write the page of an answer.

    Args:
        path: A file.
        names: Of the two checkpoints, as they were given.
        found: The answer.
        lines: What it rests on, in words.
        table_of: The headings and rows of one network.
    """
    import numpy as np

    from transformer_nfn.kinship import Relation
    from transformer_nfn.reports import HeatMap, Page, legend

    page = Page(f"{names[0]} and {names[1]}", "Does one of these checkpoints come from the other?")
    unseen = found.relation in (Relation.UNRELATED, Relation.NOT_COMPARABLE)
    page.answer(found.relation.value, lines, "open" if unseen else "good")
    for net in found.networks:
        page.heading(f"Blocks of the {net.name}")
        if net.blocks:
            page.text(
                f"Rows are blocks of {names[0]}, columns those of {names[1]}. Bright: neurons or "
                "heads keep their places, which those of unrelated models do not."
            )
            tried = np.array([block.tried for block in net.blocks]) / math.log(10)
            page.drawings([HeatMap(-np.maximum(tried, _LEAST), 0.0, -_LEAST, "p").html()])
            page.drawing(legend("as in unrelated models", "p at most 10^-60"))
        columns, rows = table_of(net)
        page.table(columns, rows, right=("cosine", "differ by"))
        if net.reason:
            page.text(f"The stream is not compared: {net.reason}.")
        if net.stream is not None and net.stream.doubt:
            page.text(f"The stream is not counted in p: {net.stream.doubt}.")
    write_page(page, path)
