"""The page of `tnfn dedup`: lineages as trees, copies, and what could not be read."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_nfn.cli.pages.common import write_page
from transformer_nfn.cli.wording import counted

if TYPE_CHECKING:
    from transformer_nfn.kinship import Duplicates
    from transformer_nfn.reports import Page

#: Files of trees and of tables, and files whose distances are drawn.
_FILES, _MAP = 2000, 200


def write_dedup(
    path: Path, title: str, found: "Duplicates", name: Callable[[str], str], summary: str
) -> None:
    """Write the page of what was found.

    Args:
        path: A file.
        title: Where the checkpoints are.
        found: What was found.
        name: What a file is called.
        summary: The counts in a line.
    """
    from transformer_nfn.reports import Page

    page = Page(title, "Which of these checkpoints are copies of one network, or related?")
    counts = found.counts()
    lines = [
        ("files", f"{counts['files']:,} compared"),
        ("copies", f"{counts['copies']:,}, however reparametrised"),
        ("related", f"{counts['related']:,}: fine-tunes, pruned and merged networks"),
    ]
    if found.unsupported:
        lines.append(
            (
                "not compared",
                f"{counted(len(found.unsupported), 'file')} of architectures that are not read, "
                f"{len(found.unsupported_copies):,} with the tensors of another",
            )
        )
    if found.broken:
        lines.append(("not read", counted(len(found.broken), "file")))
    page.answer(summary, lines, "plain")
    _lineages(page, found, name)
    _distances(page, found, name)
    _table(page, found, name)
    if found.unsupported:
        page.heading("Architectures that are not read")
        page.text("`tnfn inspect` says why; `tnfn kin` compares two of them by their rows.")
        copies = found.unsupported_copies
        rows = [
            (name(one), name(copies[one]) if one in copies else "") for one in found.unsupported
        ]
        page.table(("path", "has the tensors of"), rows[:_FILES])
    if found.broken:
        page.heading("Not read")
        rows = [(name(one), why) for one, why in found.broken.items()]
        page.table(("path", "reason"), rows[:_FILES])
    write_page(page, path)


def _lineages(page: "Page", found: "Duplicates", name: Callable[[str], str]) -> None:
    """A tree for each lineage of several files."""
    from transformer_nfn.kinship import branches
    from transformer_nfn.reports import Twig, draw_tree

    every = list(branches(found))
    if not every:
        return
    page.heading("Lineages")
    page.text(
        "Green: a copy. Orange: related, with the distance. A link says that two files are "
        "related, not which came first; `tnfn kin` tells, where it can be seen."
    )
    twigs: list[Twig] = []
    rows: dict[int, int] = {}
    for branch in every[:_FILES]:
        if branch.depth == 0 and twigs:
            page.drawing(draw_tree(twigs))
            twigs, rows = [], {}
        link = branch.link
        note = "" if link.of is None else "copy" if link.copy else f"{link.distance:.2g}"
        rows[branch.file] = len(twigs)
        above = None if link.of is None else rows[link.of]
        title = name(found.index.paths[branch.file])
        twigs.append(Twig(title, note, branch.depth, above, link.copy))
    page.drawing(draw_tree(twigs))
    if len(every) > _FILES:
        page.text(f"The first {_FILES:,} of {len(every):,} files are drawn.")


def _distances(page: "Page", found: "Duplicates", name: Callable[[str], str]) -> None:
    """All distances, of a number of files that a person can take in."""
    import numpy as np

    from transformer_nfn.reports import HeatMap, legend

    if not 2 <= len(found.order) <= _MAP:
        return
    page.heading("Distances")
    page.text(
        "Of all pairs, in the order of the table below; the median of the parts. Grey: other "
        "shapes, whose fingerprints are not compared."
    )
    sizes = np.log10(np.maximum(found.matrix(found.order), 1e-7))
    page.drawings([HeatMap(sizes, -7.0, 0.3, counted(len(found.order), "file")).html()])
    page.drawing(legend("the same", "unrelated"))


def _table(page: "Page", found: "Duplicates", name: Callable[[str], str]) -> None:
    rows = found.table()
    page.heading("All files")
    columns = ("lineage", "network", "path", "relation", "to", "distance", "shape", "dtype")
    page.table(
        columns,
        (
            (
                str(row.lineage),
                str(row.network),
                name(row.path),
                row.relation.value if row.relation else "",
                name(row.to) if row.to else "",
                "" if row.distance is None else f"{row.distance:.1e}",
                row.shape,
                row.dtype,
            )
            for row in rows[:_FILES]
        ),
        right=("lineage", "network", "distance"),
    )
    if len(rows) > _FILES:
        page.text(f"The first {_FILES:,} of {len(rows):,} files; --to writes them all.")
