"""What all pages share: the option, and who made them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_nfn.cli.early import check_writable

if TYPE_CHECKING:
    from transformer_nfn.reports import Page

Html = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="A report to look at in a browser, in one file."),
]


def check_page(path: Path | None) -> None:
    """Complain of a page that cannot be written before the work."""
    check_writable(path, (".html",))


def write_page(page: "Page", path: Path) -> None:
    """Write a page, and say who made it and when."""
    from datetime import UTC, datetime

    from transformer_nfn import __version__

    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    page.save(path, f"tnfn {__version__}, {date}")
