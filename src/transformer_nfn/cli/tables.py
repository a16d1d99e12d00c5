"""The one way to print a table, and a verdict as a panel."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from transformer_nfn.cli.terminal import say, say_rendered, styled

if TYPE_CHECKING:
    from rich.console import Console

#: Elsewhere than at a terminal lines may be long: folded names are hard to search for.
_WIDE = 1000
#: At a terminal a panel is no wider than a person reads.
_PANEL = 100


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Collection[str] = (),
    indent: int = 0,
) -> None:
    """Print rows below their headings.

    Args:
        columns: The headings.
        rows: A text for each column.
        right: Columns of numbers, which end at one line.
        indent: Spaces before each row.
    """
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, overflow="fold", justify="right" if name in right else "left")
    for row in rows:
        table.add_row(*map(styled, row))
    console = _console()
    if not console.is_terminal:
        console.width = _WIDE
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        say_rendered(" " * indent + line.rstrip())  # rich fills lines up with spaces


def print_panel(title: str, lines: Sequence[tuple[str, str]], colour: str) -> None:
    """Print an answer: what it is, then what it rests on; a frame only at a terminal.

    Args:
        title: The answer in a few words.
        lines: A word each, and what is to be said of it.
        colour: Of the frame.
    """
    from rich.panel import Panel
    from rich.table import Table

    console = _console()
    if not console.is_terminal:
        width = max((len(name) for name, _ in lines), default=0)
        say(title)
        for name, text in lines:
            say(f"  {name:<{width}}  {text}")
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in lines:
        table.add_row(styled(name), styled(text))
    heading = styled(title)
    heading.stylize(f"bold {colour}")
    width = min(console.width, _PANEL)
    panel = Panel(table, title=heading, title_align="left", border_style=colour, width=width)
    console.print(panel)


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False)
