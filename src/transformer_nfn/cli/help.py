"""How help looks: lists of commands as panels, a command's options as plain lines."""

from typing import Any

import typer
from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command with plain help: in 80 columns typer's panels leave 20 for the text."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options | {"rich_markup_mode": None})


def command_group(about: str) -> typer.Typer:
    """A group of commands.

    Args:
        about: What they are for, in a line.
    """
    return typer.Typer(help=about, no_args_is_help=True, rich_markup_mode="rich")
