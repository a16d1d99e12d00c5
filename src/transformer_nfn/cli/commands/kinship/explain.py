"""`tnfn explain`: which of several checkpoints one was made of."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_nfn.cli.checkpoints import Blocks, Source
from transformer_nfn.cli.common import Json
from transformer_nfn.cli.early import check_there
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json

if TYPE_CHECKING:
    from transformer_nfn.kinship import Explanation


def explain(
    checkpoint: Source,
    parents: Annotated[
        list[str], typer.Option("--from", help="A checkpoint it may come from; several times.")
    ],
    as_json: Json = False,
) -> None:
    """Say which tensors come from which other checkpoints.

    Each is copied, merged, changed or new.

    Tensors of the same names are compared, blocks with the blocks that are most like them. Merged
    tensors are sums of their parents, with coefficients by least squares: a task vector is such a
    sum, and a spherical interpolation is recognised. Exit code 1 if a file cannot be read.

    Example: tnfn explain merged/ --from base/ --from tuned/
    """
    check_there(checkpoint, *parents)
    from contextlib import ExitStack

    from transformer_nfn.checkpoints import open_files
    from transformer_nfn.kinship import explain as ask

    with ExitStack() as stack:
        child, *others = (stack.enter_context(open_files(p)) for p in (checkpoint, *parents))
        names = [other.path.name for other in others]
        if len(set(names)) < len(names):
            names = [str(other.path) for other in others]
        tensors = len(list(child))
        with Blocks(tensors, "tensors explained", disable=as_json) as progress:
            found = ask(child, others, names, progress)
    if as_json:
        say_json(facts(found, names))
    else:
        _show(found, names)


def facts(found: "Explanation", names: list[str]) -> dict[str, Any]:
    """The explanation as plain data."""
    return {
        "summary": found.summary,
        "blocks": {
            name: {str(one): other for one, other in sorted(known.items())}
            for name, known in zip(names, found.blocks, strict=True)
        },
        "tensors": [
            {
                "name": one.name,
                "origin": one.origin.value,
                "from": [
                    {
                        "checkpoint": names[share.parent],
                        "name": share.name,
                        "coefficient": round(share.coefficient, 5),
                    }
                    for share in one.shares
                ],
                "unexplained": float(f"{one.left:.4g}"),
            }
            for one in found.tensors
        ],
    }


def _show(found: "Explanation", names: list[str]) -> None:
    say(found.summary)
    rows = []
    for one in found.tensors:
        made = " + ".join(f"{share.coefficient:.3f} {names[share.parent]}" for share in one.shares)
        left = f", {one.left:.1%} new" if one.origin.value == "changed" else ""
        rows.append((one.name, one.origin.value, made + left))
    print_table(("tensor", "origin", "made of"), rows)
