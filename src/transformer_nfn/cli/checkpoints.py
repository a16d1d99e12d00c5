"""What the commands on checkpoints share: the options that stand in for a config."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

#: Text and no `Path`, which would make `s3:/a` of `s3://a`.
Source = Annotated[
    str,
    typer.Argument(
        help="A .safetensors or .gguf file, an index, or a folder with one of them; or its URL."
    ),
]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", help="config.json of the file, or its URL, if it is not in the same folder."
    ),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting that overrides config.json."),
]

FamilyFile = Annotated[
    str | None,
    typer.Option(
        "--family",
        metavar="FILE.py",
        help="A table of your own for a family we do not know. The file is run: give only what you "
        "would run anyway.",
    ),
]
#: The same for commands that take two files.
ConfigFirst = Annotated[str | None, typer.Option(help="config.json of the first.")]
ConfigSecond = Annotated[str | None, typer.Option(help="config.json of the second.")]
OptionsFirst = Annotated[
    list[str] | None,
    typer.Option("--set-first", metavar="NAME=VALUE", help="A setting of the first only."),
]
OptionsSecond = Annotated[
    list[str] | None,
    typer.Option("--set-second", metavar="NAME=VALUE", help="A setting of the second only."),
]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        help="Only a part of both: `body` without heads and poolers, `encoder`, or a tower, by "
        "the prefix of its tensor names, such as vision_model.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=2**62,
        help="Seed of the random inputs on which both are run; a fresh one if not given. It is "
        "printed, so that the run can be repeated.",
    ),
]


def open_checkpoint(
    path: str,
    config: str | None = None,
    options: list[str] | None = None,
    family: str | None = None,
    only: str | None = None,
) -> Any:
    """An open `Checkpoint`, to be used in a `with`."""
    from transformer_nfn.checkpoints import Checkpoint, load_family, parse_option

    return Checkpoint(
        path,
        config=config,
        options=dict(map(parse_option, options or [])),
        family=load_family(family) if family is not None else None,
        only=only,
    )


@contextmanager
def open_two(
    paths: tuple[str, str],
    configs: tuple[str | None, str | None],
    options: tuple[list[str] | None, list[str] | None, list[str] | None],
    family: str | None,
    only: str | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Two open `Checkpoint`s; the first of the options are for both."""
    every, *each = (some or [] for some in options)
    with (
        open_checkpoint(paths[0], configs[0], [*every, *each[0]], family, only) as ours,
        open_checkpoint(paths[1], configs[1], [*every, *each[1]], family, only) as theirs,
    ):
        yield ours, theirs


class Blocks:
    """A bar that counts blocks, on stderr, while a long command runs."""

    def __init__(self, blocks: int, describe: str, *, disable: bool) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(
            *columns,
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=disable or not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(describe, total=blocks)

    def __enter__(self) -> Any:
        self._bar.__enter__()
        return lambda done, total=None: self._bar.update(self._task, completed=done, total=total)

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)
