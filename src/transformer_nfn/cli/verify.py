"""`tnfn verify`: is a certificate true?"""

from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.checkpoints import Options, open_checkpoint
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.names import one_line
from transformer_nfn.cli.same import DIFFERENT, UNDECIDED


def verify(
    certificate: Annotated[Path, typer.Argument(help="Written by `tnfn same --certificate`.")],
    first: Annotated[Path, typer.Argument(help="The checkpoint it acts on.")],
    second: Annotated[Path, typer.Argument(help="What that becomes.")],
    seed: Annotated[
        int | None, typer.Option(min=0, help="Of the inputs to run; fresh if not given.")
    ] = None,
    config_first: Annotated[Path | None, typer.Option(help="config.json of the first.")] = None,
    config_second: Annotated[Path | None, typer.Option(help="config.json of the second.")] = None,
    options: Options = None,
    options_first: Annotated[
        list[str] | None, typer.Option("--set-first", metavar="NAME=VALUE", help="For the first.")
    ] = None,
    options_second: Annotated[
        list[str] | None, typer.Option("--set-second", metavar="NAME=VALUE", help="For the second.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a certificate from outside: nothing in it is trusted, and nothing is searched for.

    The SHA-256 of both checkpoints and their settings; that all in it is a symmetry of the first;
    that this carries the first to the second up to rounding; that both compute the same when run.
    Settings are given as they were to `tnfn same`. Exit code 0 if it holds, 3 if not, 4 if the
    weights agree but the functions cannot be run, 1 if a file cannot be read.

    Example: tnfn verify g.safetensors a.safetensors b/
    """
    from transformer_nfn.identity import verify as check

    every = options or []
    with (
        open_checkpoint(first, config_first, [*every, *(options_first or [])]) as ours,
        open_checkpoint(second, config_second, [*every, *(options_second or [])]) as theirs,
    ):
        found = check(certificate, ours, theirs, seed=seed)
    near, witness = found.carried, found.witness
    figures = {
        "holds": found.holds,
        "reason": one_line(found.reason),
        "off_by_roundings": near and _short(near.units),
        "limit": near and _short(near.limit),
        "where": near and near.where,
        "outputs_differ_by_roundings": witness and _short(witness.ratio),
        "seed": found.seed,
    }
    show({name: value for name, value in figures.items() if as_json or value is not None}, as_json)
    if not found.holds:
        raise typer.Exit(UNDECIDED if found.holds is None else DIFFERENT)


def _short(value: float) -> float:
    return float(f"{value:.4g}")
