"""A page of HTML that stands alone: no scripts, nothing from elsewhere, all text escaped."""

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from uuid import uuid4

from transformer_nfn.escaping import for_page

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #2e7d32; --bad: #c62828;
  --open: #b26a00; --plain: #00788a; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.about, .legend, footer, .note { color: #777; }
.answer { border: 1px solid var(--line); border-left: .5rem solid var(--kind); border-radius: .3rem;
  padding: .8rem 1.2rem; margin: 1rem 0; }
.answer strong { font-size: 1.2rem; color: var(--kind); }
.good { --kind: var(--good); } .bad { --kind: var(--bad); } .open { --kind: var(--open); }
.plain { --kind: var(--plain); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .6rem 0 0; }
dt { font-weight: 600; } dd { margin: 0; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th.number, td.number { text-align: right; }
.maps { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
.map { margin: 0; } .map figcaption { font-size: .85rem; }
img { image-rendering: pixelated; vertical-align: middle; }
.bar { display: inline-block; height: .8rem; background: var(--kind, #5b8def); min-width: 1px;
  vertical-align: middle; margin-right: .5rem; }
td { max-width: 40rem; }
.tree { font: 13px system-ui, sans-serif; } .tree path { fill: none; stroke: #8888; }
.tree text { fill: currentColor; } .tree .note { fill: #888; }
.tree .root { fill: #777; } .tree .copy { fill: #2e7d32; } .tree .related { fill: #e08600; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .5rem;
  font-size: .85rem; }
code { overflow-wrap: anywhere; }
"""


class Page:
    """A report in the making.

    Args:
        title: What it is of.
        about: Which question was asked.
    """

    def __init__(self, title: str, about: str) -> None:
        self._title = for_page(title)
        self._pieces = [f'<h1>{self._title}</h1><p class="about">{for_page(about)}</p>']

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._pieces.append(f"<h2>{for_page(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._pieces.append(f"<p>{for_page(text)}</p>")

    def answer(self, answer: str, lines: Iterable[tuple[str, str]], kind: str) -> None:
        """The answer, and what it rests on.

        Args:
            answer: In a few words.
            lines: A word each, and what is to be said of it.
            kind: "good", "bad", "open" or "plain", which decides the colour.
        """
        said = "".join(f"<dt>{for_page(n)}</dt><dd>{for_page(t)}</dd>" for n, t in lines)
        self._pieces.append(
            f'<div class="answer {for_page(kind)}"><strong>{for_page(answer)}</strong>'
            f"<dl>{said}</dl></div>"
        )

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[str]],
        right: Collection[str] = (),
    ) -> None:
        """Rows below their headings; `right` are columns of numbers."""
        kinds = [' class="number"' if name in right else "" for name in columns]
        head = "".join(
            f"<th{kind}>{for_page(name)}</th>" for kind, name in zip(kinds, columns, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(f"<td{k}>{for_page(c)}</td>" for k, c in zip(kinds, row, strict=True))
            + "</tr>"
            for row in rows
        )
        self._pieces.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
            "</div>"
        )

    def bars(self, rows: Iterable[tuple[str, float, str]]) -> None:
        """A bar for each: what it is, its length from 0 to 1, and what stands beside it."""
        body = "".join(
            f"<tr><td>{for_page(name)}</td><td>"
            f'<span class="bar" style="width:{24 * min(max(0.0, share), 1.0):.2f}rem"></span>'
            f"{for_page(note)}</td></tr>"
            for name, share, note in rows
        )
        self._pieces.append(f"<table><tbody>{body}</tbody></table>")

    def drawings(self, pieces: Iterable[str]) -> None:
        """Pictures side by side, as `HeatMap.html` and `draw_tree` make them."""
        self._pieces.append(f'<div class="maps wide">{"".join(pieces)}</div>')

    def drawing(self, piece: str) -> None:
        """One picture or legend."""
        self._pieces.append(f'<div class="wide">{piece}</div>')

    def save(self, path: Path, made_by: str) -> None:
        """Write the page, in place of an older one.

        Args:
            path: A file.
            made_by: The program and its version.
        """
        # Whatever slipped through could load nothing: the browser is told so as well.
        policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        text = (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width">'
            f"<title>{self._title}</title><style>{_STYLE}</style></head><body>"
            f"{''.join(self._pieces)}<footer>{for_page(made_by)}</footer></body></html>\n"
        )
        # Whole or not at all, and what a link of this name leads to stays as it is.
        temporary = path.with_name(f".{uuid4().hex}.part")
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
