"""The one way to stdout and stderr: what commands say may hold names and words of strangers."""

import json
from typing import TYPE_CHECKING, Any

import typer

from transformer_nfn.escaping import for_terminal

if TYPE_CHECKING:
    from rich.text import Text


def say(text: str = "", *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(for_terminal(text), err=err)


def say_lines(text: str, *, err: bool = False) -> None:
    """Print several lines, such as those of a traceback."""
    for line in text.split("\n"):
        say(line, err=err)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON, in ASCII; json leaves one control character as it is."""
    typer.echo(json.dumps(value).replace("\x7f", "\\u007f"))


def styled(text: str) -> "Text":
    """Text for rich, which would take names in brackets for markup."""
    from rich.text import Text

    return Text(for_terminal(text))
