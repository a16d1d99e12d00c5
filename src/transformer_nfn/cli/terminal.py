"""The one way to stdout and stderr: what commands say may hold names and words of strangers."""

import json
from math import isfinite
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


def say_rendered(line: str) -> None:
    """Print a line of what rich made of `styled` text: its colours are no one else's."""
    typer.echo(line)


def say_json(value: Any) -> None:
    """Print a value as one line of JSON, in ASCII; json leaves one control character as it is.

    JSON has no infinity and no NaN: they are null.
    """
    typer.echo(json.dumps(_finite(value), allow_nan=False).replace("\x7f", "\\u007f"))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def styled(text: str) -> "Text":
    """Text for rich, which would take names in brackets for markup."""
    from rich.text import Text

    return Text(for_terminal(text))
