"""`tnfn dedup`: copies in disguise and near copies under a folder."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_nfn.cli.bulk import BlockChoice, Sources, few_paths, run_bulk
from transformer_nfn.cli.common import Json, Ray, interruptible, make_executor
from transformer_nfn.cli.names import common_folder, short

if TYPE_CHECKING:
    from transformer_nfn.identity import Duplicates, Fingerprint


def dedup(
    sources: Sources,
    plot: Annotated[Path | None, typer.Option(help="A PNG of all distances.")] = None,
    out: Annotated[
        str | None,
        typer.Option(help="FOLDER for the fingerprints of many files, see `tnfn fingerprint`."),
    ] = None,
    blocks: BlockChoice = "all",
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Find the checkpoints under a folder that are one network, however reparametrised, or its kin.

    Copies are told by fingerprints; `tnfn same` proves it for two of them. In 16 bits a fine-tune
    by less than 1 % may look like a copy. Files that cannot be read are named and left out; exit
    code 1 if no file could be read. A FOLDER that `tnfn fingerprint` made can be given instead of
    files.

    Example: tnfn dedup checkpoints/ --plot distances.png
    """
    from transformer_nfn.hub import Results
    from transformer_nfn.identity import Kinship, group_copies

    prints, broken = _fingerprints(sources, out, blocks, ray, as_json)
    folder = Path(sources[0])
    if out is not None or len(sources) > 1 or not folder.is_dir() or Results.there(sources[0]):
        folder = common_folder([one.path for one in prints])
    found = group_copies(prints, broken)
    if plot is not None and prints:
        _plot(found, folder, plot)
    counts = {
        "files": len(prints),
        "networks": len(found.groups),
        "families": len(found.families),
        "copies": sum(row.kinship is Kinship.COPY for row in found.table()),
        "near_copies": sum(row.kinship is Kinship.NEAR for row in found.table()),
    }
    if as_json:
        rows = [asdict(row) for row in found.table()]
        typer.echo(json.dumps({**counts, "table": rows, "broken": broken}))
    else:
        _show(found, folder)
        typer.echo(
            f"{counts['files']} files, {counts['networks']} networks in {counts['families']} "
            f"families; {counts['copies']} copies, {counts['near_copies']} near copies"
        )
        for reason in broken.values():
            typer.echo(f"not read: {reason}", err=True)
    if not prints:
        raise typer.Exit(1)


def _fingerprints(
    sources: list[str], out: str | None, blocks: str, ray: str | None, as_json: bool
) -> "tuple[list[Fingerprint], dict[str, str]]":
    """Computed in memory, or with a folder of results in between, or taken from one."""
    from transformer_nfn.checkpoints import CheckpointError
    from transformer_nfn.hub import FingerprintTask, Results, stored_fingerprints
    from transformer_nfn.identity import fingerprints
    from transformer_nfn.jobs import track

    if out is not None:
        bulk, figures = run_bulk(FingerprintTask(blocks), sources, out, ray, as_json)
        return stored_fingerprints(bulk.results, bulk.listing), figures["reasons"]
    if len(sources) == 1 and Results.there(sources[0]):
        return stored_fingerprints(Results(sources[0])), {}
    for source in sources:
        if "://" not in source and not os.path.exists(source):
            raise CheckpointError(f"{source} does not exist")
    paths = few_paths(sources)
    with interruptible(), make_executor(ray) as executor:
        return fingerprints(
            paths,
            executor,
            lambda outcomes: track(outcomes, len(paths), describe="fingerprints", disable=as_json),
            blocks=blocks,
        )


def _show(found: "Duplicates", folder: Path) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Elsewhere than at a terminal lines may be long; folded names are hard to search for.
    console = Console()
    console = console if console.is_terminal else Console(width=1000)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("family", "network", "file", "what", "distance", "dtype"):
        table.add_column(name, overflow="fold", justify="right" if name == "distance" else "left")
    for row in found.table():
        what = "" if row.of is None else f"{row.kinship.value} of {short(row.of, folder)}"
        far = "" if row.distance is None else f"{row.distance:.1e}"
        # Text: file names may look like markup.
        words = (
            str(row.family + 1),
            str(row.group + 1),
            short(row.path, folder),
            what,
            far,
            row.dtype,
        )
        table.add_row(*(Text(word) for word in words))
    if found.prints:
        console.print(table)


def _plot(found: "Duplicates", folder: Path, plot: Path) -> None:
    """A heat map of all pairs, families together; grey between files of different shapes."""
    import matplotlib

    from transformer_nfn.checkpoints import CheckpointError

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    matrix = found.matrix()
    names = [short(found.prints[one].path, folder) for one in found.order]
    side = min(4 + 0.25 * len(names), 24)
    figure, axes = plt.subplots(figsize=(side + 2, side), layout="constrained")
    colours = plt.get_cmap("viridis").with_extremes(bad="0.85")
    image = axes.imshow(np.log10(np.maximum(matrix, 1e-7)), cmap=colours, vmin=-7, vmax=0.3)
    if len(names) <= 80:
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_yticks(range(len(names)), names, fontsize=7)
    else:
        axes.set_xlabel("files, families together")
    axes.set_title("median distance of the parts of two files")
    figure.colorbar(image, ax=axes, label="log10 of the distance; grey: other shape", shrink=0.8)
    try:
        figure.savefig(plot, dpi=150)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{plot}: {error}") from None
    finally:
        plt.close(figure)
