"""`tnfn audit`: steps of a training run that repeat, or are of another run."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.bulk import few_paths
from transformer_nfn.cli.common import Json, Ray, interruptible, make_executor
from transformer_nfn.cli.early import check_there
from transformer_nfn.cli.names import common_folder, short
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json


def audit(
    folder: Annotated[
        str, typer.Argument(help="A folder, or its URL: checkpoints of one run, in natural order.")
    ],
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Check a training run for repeated and foreign steps.

    A duplicate is found however reparametrised. A jump at the first or last steps is shown, but
    may be right. Exit code 1 if a step is a duplicate, foreign, or could not be read.

    Example: tnfn audit run-7/checkpoints
    """
    check_there(folder)
    from transformer_nfn.checkpoints import CheckpointError
    from transformer_nfn.jobs import track
    from transformer_nfn.kinship import audit_series, find_checkpoints, fingerprints

    remote = "://" in folder
    paths = few_paths([folder]) if remote else find_checkpoints(folder)
    with interruptible(), make_executor(ray) as executor:
        prints = fingerprints(
            paths,
            executor,
            lambda outcomes: track(outcomes, len(paths), describe="fingerprints", disable=as_json),
        )
    broken = prints.unread
    if len(paths) == len(broken) == 1:  # a URL that leads nowhere
        raise CheckpointError(*broken.values())
    for reason in broken.values():
        say(f"not read: {reason}", err=True)
    found = audit_series(prints.done)
    sound = found.sound and not broken
    if as_json:
        steps = [asdict(step) for step in found.steps]
        say_json({"sound": sound, "usual": found.usual, "steps": steps, "broken": broken})
    else:
        home = common_folder([step.path for step in found.steps]) if remote else Path(folder)
        rows = []
        for step in found.steps:
            what = str(step.finding or "")
            if step.of is not None:
                what += f" of {short(step.of, home)}"
            far = "" if step.moved is None else f"{step.moved:.1e}"
            rows.append((short(step.path, home), far, what))
        print_table(("step", "moved", "finding"), rows, right=("moved",))
        counts = {kind: sum(step.finding == kind for step in found.steps) for kind in _KINDS}
        words = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        say(f"{len(found.steps)} steps, usually {found.usual:.1e} apart: {words or 'all sound'}")
    if not sound:
        raise typer.Exit(1)


_KINDS = ("duplicate", "foreign", "jump")
