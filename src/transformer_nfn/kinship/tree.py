"""How files are related, as a tree: text for Graphviz or Mermaid, or a picture."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from transformer_nfn.escaping import for_picture, for_terminal
from transformer_nfn.kinship.duplicates import Duplicates, Link

#: Files that such trees can be written to.
SUFFIXES = (".dot", ".mmd", ".png", ".pdf", ".svg")
#: Most files of a picture.
_DRAWN = 300


class Branch(NamedTuple):
    """A file of a lineage of several: its number and place, and the file it is linked to."""

    file: int
    depth: int
    link: Link


def branches(found: Duplicates) -> Iterator[Branch]:
    """The files of all lineages of several, each below the one it is linked to."""
    for lineage in found.lineages:
        links = [link for group in lineage for link in group]
        below: dict[int | None, list[Link]] = {}
        for link in links:
            below.setdefault(link.of, []).append(link)
        waiting = [(link, 0) for link in reversed(below.get(None, ()))] if len(links) > 1 else []
        while waiting:
            link, depth = waiting.pop()
            yield Branch(link.file, depth, link)
            waiting += [(each, depth + 1) for each in reversed(below.get(link.file, ()))]


def write_tree(found: Duplicates, path: Path, name: Callable[[str], str] = str) -> None:
    """Write the tree of kin; by the suffix Graphviz, Mermaid, or a picture.

    An edge says that two files are kin, not which of them is the older.

    Args:
        found: Whose kin.
        path: A file that ends with one of `SUFFIXES`.
        name: What a file is called.
    """
    if path.suffix not in (".dot", ".mmd"):
        _draw(found, path, name)
        return
    write = _graphviz if path.suffix == ".dot" else _mermaid
    names = {
        branch.file: for_terminal(name(found.index.paths[branch.file]))
        for branch in branches(found)
    }
    path.write_text("\n".join(write(found, names)) + "\n", encoding="utf-8")


def _words(link: Link) -> str:
    return "copy" if link.copy else f"{link.distance:.2g}"


def _graphviz(found: Duplicates, names: dict[int, str]) -> Iterator[str]:
    yield "graph kin {"
    yield "  rankdir=LR; node [shape=box];"
    for file, text in names.items():
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        yield f'  n{file} [label="{escaped}"];'
    for branch in branches(found):
        if branch.link.of is not None:
            yield f'  n{branch.link.of} -- n{branch.file} [label="{_words(branch.link)}"];'
    yield "}"


def _mermaid(found: Duplicates, names: dict[int, str]) -> Iterator[str]:
    yield "graph LR"
    for file, text in names.items():
        # Mermaid reads entities; a quote would end the label, and < begin a tag.
        safe = "".join(c if c.isalnum() or c in " ./_-" else f"#{ord(c)};" for c in text)
        yield f'  n{file}["{safe}"]'
    for branch in branches(found):
        if branch.link.of is not None:
            yield f"  n{branch.link.of} ---|{_words(branch.link)}| n{branch.file}"


def _draw(found: Duplicates, path: Path, name: Callable[[str], str]) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    every = list(branches(found))
    shown = every[:_DRAWN]
    text: Any = {"text.usetex": False}
    with rc_context(text):
        figure = Figure(figsize=(9, 1 + 0.22 * max(len(shown), 3)), layout="constrained")
        axes = figure.subplots()
        rows = {branch.file: row for row, branch in enumerate(shown)}
        for row, (file, depth, link) in enumerate(shown):
            if link.of is not None:
                axes.plot(
                    [depth - 1, depth - 1, depth], [rows[link.of], row, row], color="0.6", lw=1
                )
            label = for_picture(name(found.index.paths[file]))
            how = "" if link.of is None else f"  ({_words(link)})"
            axes.plot(depth, row, "o", ms=4, color="C0" if link.copy else "C1")
            axes.text(depth + 0.08, row, label + how, va="center", fontsize=8)
        axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
        axes.set_xlim(-0.2, max((branch.depth for branch in shown), default=0) + 3)
        axes.axis("off")
        more = "" if len(shown) == len(every) else f"; the first {len(shown)} of {len(every)}"
        axes.set_title(f"related files, and how far they are apart{more}", fontsize=9)
        figure.savefig(path, dpi=150)
