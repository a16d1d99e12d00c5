"""The entry point: registers the commands and turns our own errors into one line."""

import io
import sys
from itertools import pairwise
from typing import Annotated, Any

import typer

from transformer_nfn.cli.commands.apply import apply
from transformer_nfn.cli.commands.bench import bench_app
from transformer_nfn.cli.commands.convert import convert
from transformer_nfn.cli.commands.families import families
from transformer_nfn.cli.commands.inspect import inspect
from transformer_nfn.cli.commands.kinship.audit import audit
from transformer_nfn.cli.commands.kinship.dedup import dedup
from transformer_nfn.cli.commands.kinship.explain import explain
from transformer_nfn.cli.commands.kinship.fingerprint import fingerprint
from transformer_nfn.cli.commands.kinship.kin import kin
from transformer_nfn.cli.commands.kinship.nearest import nearest
from transformer_nfn.cli.commands.rank import rank
from transformer_nfn.cli.commands.reparam import reparam
from transformer_nfn.cli.commands.same import same
from transformer_nfn.cli.commands.verify import verify
from transformer_nfn.cli.commands.zoo import zoo_app
from transformer_nfn.cli.help import PlainCommand
from transformer_nfn.cli.names import one_line
from transformer_nfn.cli.terminal import say, say_lines

app = typer.Typer(
    name="tnfn",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = {
    "Compare checkpoints": (same, kin, explain, dedup, nearest, audit, fingerprint),
    "Look at and change checkpoints": (inspect, families, convert, reparam, apply, verify),
}
for _panel, _members in _COMMANDS.items():
    for _command in _members:
        app.command(rich_help_panel=_panel, cls=PlainCommand)(_command)
_LEARN = "Learn from weights"
app.command(rich_help_panel=_LEARN, cls=PlainCommand)(rank)
app.add_typer(bench_app, name="bench", rich_help_panel=_LEARN)
app.add_typer(zoo_app, name="zoo", rich_help_panel=_LEARN)

#: typer has the class of all its complaints under no name of its own.
_UsageError: Any = typer.BadParameter.__base__


def _show_version(wanted: bool) -> None:
    if wanted:
        from transformer_nfn import __version__

        say(f"tnfn {__version__}")
        raise typer.Exit


@app.callback()
def _commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Say which version this is."
        ),
    ] = False,
) -> None:
    """Learn from, compare and audit the weights of transformers."""


def with_default_address(arguments: list[str]) -> list[str]:
    """Give a bare `--ray` its value, which typer wants: a cluster of our own on this machine."""
    return [
        "--ray=local" if argument == "--ray" and after.startswith("-") else argument
        for argument, after in pairwise([*arguments, "-"])
    ]


def main() -> None:
    """Run `tnfn`: exit code 1 for an error that the user can mend, 2 for a wrong command line.

    130 after Ctrl-C.
    """
    try:
        # What a command returns is nothing, and what it exits with is returned.
        sys.exit(app(with_default_address(sys.argv[1:]), standalone_mode=False) or 0)
    except _UsageError as error:
        # It quotes the command line, which may be file names that a shell put there.
        said = io.StringIO()
        error.show(said)
        say_lines(said.getvalue().rstrip(), err=True)
        sys.exit(error.exit_code)
    except (ValueError, OSError) as error:
        # Errors of the rooms say what to do, and the system which file is not there, not allowed
        # or too large for the disk; a traceback would hide that.
        ours = type(error).__module__.startswith("transformer_nfn.")
        if not ours and not isinstance(error, OSError):
            raise
        say(f"error: {one_line(str(error))}", err=True)
        sys.exit(1)
