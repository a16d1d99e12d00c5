"""The page of `tnfn inspect`: sizes, symmetries, health."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_nfn.cli.pages.common import write_page

if TYPE_CHECKING:
    from transformer_nfn.identity import Inspection


def write_inspection(
    path: Path,
    title: str,
    found: "Inspection",
    lines: Sequence[tuple[str, str]],
    symmetries: Sequence[tuple[str, str, str]],
    health: tuple[Sequence[str], Sequence[Sequence[str]]],
) -> None:
    """Write the page of a checkpoint.

    Args:
        path: A file.
        title: The checkpoint, as it was given.
        found: What it is.
        lines: The same in words.
        symmetries: Parts of its group: name, dimensions, what they are.
        health: Headings and rows, a block each.
    """
    from transformer_nfn.reports import Page

    page = Page(title, "What is this checkpoint, and which changes leave its function as it is?")
    page.answer(f"{found.family}, {found.parameters:,} parameters", lines, "plain")
    page.heading("Symmetries")
    page.text(
        f"A change of weights along {found.dimension:,} dimensions leaves the function as it is: "
        f"{found.dimension / max(1, found.parameters):.1%} of all parameters."
    )
    largest = max([*found.group.values(), 1])
    page.bars(
        (name, found.group[name] / largest, f"{dimension}: {what}")
        for name, dimension, what in symmetries
    )
    page.heading("Health of the blocks")
    page.text(
        "The smallest rank and the largest condition number of any attention head; neurons that "
        "read or write nothing; numbers that are NaN or infinite."
    )
    page.table(*health, right=health[0])
    if found.not_finite:
        page.heading("NaN or infinite numbers outside the blocks")
        page.table(("tensor", "numbers"), ((n, str(c)) for n, c in found.not_finite.items()))
    write_page(page, path)
