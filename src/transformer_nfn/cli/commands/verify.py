"""`tnfn verify`: is a certificate true?"""

from typing import Annotated

import typer

from transformer_nfn.cli.checkpoints import (
    ConfigFirst,
    ConfigSecond,
    FamilyFile,
    Options,
    OptionsFirst,
    OptionsSecond,
    Seed,
    Source,
    open_two,
)
from transformer_nfn.cli.commands.same import DIFFERENT, UNDECIDED
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.early import check_there
from transformer_nfn.cli.verdicts import short


def verify(
    certificate: Annotated[
        str, typer.Argument(help="Written by `tnfn same --certificate`; or its URL.")
    ],
    first: Source,
    second: Source,
    seed: Seed = None,
    config_first: ConfigFirst = None,
    config_second: ConfigSecond = None,
    options: Options = None,
    family: FamilyFile = None,
    options_first: OptionsFirst = None,
    options_second: OptionsSecond = None,
    as_json: Json = False,
) -> None:
    """Check a certificate; nothing in it is trusted.

    The SHA-256 of both checkpoints and their settings; that all in it is a symmetry of the first;
    that this carries the first to the second up to rounding; that both compute the same when run.
    Settings are given as they were to `tnfn same`. Exit code 0 if it holds, 3 if not, 4 if the
    weights agree but the functions cannot be run, 1 if a file cannot be read.

    Example: tnfn verify g.safetensors a.safetensors b/
    """
    check_there(certificate, first, second)
    from transformer_nfn.identity import verify as check

    configs, settings = (config_first, config_second), (options, options_first, options_second)
    with open_two((first, second), configs, settings, family) as (ours, theirs):
        found = check(certificate, ours, theirs, seed=seed)
    agreement = found.agreement
    figures = {
        "holds": found.holds,
        "reason": found.reason,
        "largest_residual": short(found.residual),
        "outputs_differ_by_roundings": agreement and short(agreement.ratio),
        "seed": found.seed,
    }
    show({name: value for name, value in figures.items() if as_json or value is not None}, as_json)
    if not found.holds:
        raise typer.Exit(UNDECIDED if found.holds is None else DIFFERENT)
