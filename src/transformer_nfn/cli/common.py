"""What several commands share: options, executors, output."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from transformer_nfn.cli.terminal import say, say_json

Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Run on Ray: alone or as `local` on all cores of this machine, else on the cluster "
        "auto, HOST:PORT or ray://HOST:PORT.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")]


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Print figures: one JSON object, or a line for each."""
    if as_json:
        say_json(figures)
        return
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            value = ", ".join(value)
        elif isinstance(value, list | dict):
            value = json.dumps(value)
        say(f"{name.replace('_', ' '):<{width}}  {value}")


def make_executor(ray: str | None, gpus: int = 0, cpus: float | int = 1, **options: Any) -> Any:
    """Where jobs run: in this process, or on Ray, with further options of `RayExecutor`."""
    from transformer_nfn.jobs import InProcess, RayExecutor

    if ray is None:
        return InProcess()
    return RayExecutor(None if ray == "local" else ray, cpus=cpus, gpus=gpus, **options)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, and a polite kill as of a cluster's scheduler, into a friendly end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted: what is finished is kept, the same command continues", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
