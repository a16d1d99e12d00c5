"""`tnfn dedup`: copies in disguise and kin among checkpoints."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_nfn.cli.bulk import BlockChoice, Sources, few_fingerprints, run_bulk
from transformer_nfn.cli.common import Json, Ray, interruptible
from transformer_nfn.cli.early import (
    check_not_read,
    check_package,
    check_picture,
    check_some_there,
    check_there,
    check_writable,
)
from transformer_nfn.cli.names import common_folder, short
from transformer_nfn.cli.pages.common import Html, check_page
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json
from transformer_nfn.cli.wording import counted

if TYPE_CHECKING:
    from transformer_nfn.hub import Results
    from transformer_nfn.kinship import Duplicates, Row

#: Of more files only those that have relatives are listed, and only this many of them.
_LISTED = 100
#: Broken files that are named.
_BROKEN = 20
#: Pairs, in millions, from which on their comparison has a progress bar: about a second.
_LONG = 1000


def dedup(
    sources: Sources,
    plot: Annotated[Path | None, typer.Option(help="A PNG of all distances.")] = None,
    tree: Annotated[
        Path | None,
        typer.Option(help="FILE.dot, .mmd (Mermaid), .png or .svg: how files are related."),
    ] = None,
    html: Html = None,
    to: Annotated[
        Path | None, typer.Option(help="FILE.parquet or FILE.csv for the whole table.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="FOLDER for the fingerprints of many files, see `tnfn fingerprint`."),
    ] = None,
    blocks: BlockChoice = "all",
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Find copies and related checkpoints under a folder.

    Copies are found however they were reparametrised.

    Copies are told by fingerprints; `tnfn same` proves it for two of them. Related files are told
    by sketches too: fine-tunes, pruned and merged networks, of other depths and vocabularies;
    `tnfn kin` tells how sure that is, and which came first. In 16 bits a fine-tune by less than 1 %
    may look like a copy. Files of architectures that are not read are counted, and their copies
    found by their tensors. Broken files are named and left out; exit code 1 if no file could be
    read. A FOLDER that `tnfn fingerprint` made can be given instead of files. Of more than 100
    files only those that have relatives are listed; --to writes all.

    Example: tnfn dedup checkpoints/ --plot distances.png
    Example: tnfn dedup s3://hub/models --out prints --ray --to kin.parquet
    """
    check_writable(to, (".parquet", ".csv"))
    check_picture(plot)
    check_page(html)
    check_not_read(sources, to, plot, tree, html)
    if tree is not None and tree.suffix in (".png", ".pdf", ".svg"):
        check_package("matplotlib", "--tree", "zoo")
    if tree is None:
        check_some_there(sources)
    from transformer_nfn.hub import Results
    from transformer_nfn.kinship import TREES, plot_kin, write_tree

    check_writable(tree, TREES)
    found = _find(sources, out, blocks, ray, as_json)
    paths = found.index.paths
    folder = Path(sources[0])
    if out is not None or len(sources) > 1 or not folder.is_dir() or Results.there(sources[0]):
        folder = common_folder(paths)
    if plot is not None and paths:
        _draw(plot_kin, found, folder, plot)
    if tree is not None:
        _draw(write_tree, found, folder, tree)
    if to is not None:
        _write(found.table(), to)
    if html is not None:
        from transformer_nfn.cli.pages.dedup import write_dedup

        title = sources[0] if len(sources) == 1 else str(folder)
        write_dedup(html, title, found, lambda file: short(file, folder), _summary(found))
        say(f"wrote {html}", err=True)
    rows = found.table(least=1 if len(paths) <= _LISTED else 2)
    if as_json:
        figures = {**found.counts(), "table": [row._asdict() for row in rows]}
        figures["unsupported_copies"] = found.unsupported_copies
        say_json({**figures, "broken": dict(found.broken)})
    else:
        _show(rows[:_LISTED], folder)
        if len(rows) > _LISTED:
            say(f"and {len(rows) - _LISTED:,} more: --to FILE.parquet writes them all")
        say(_summary(found))
        _show_unsupported(found, folder)
        _show_broken(found)
    if not paths and not found.unsupported:
        raise typer.Exit(1)


def _summary(found: "Duplicates") -> str:
    """The counts in a line."""
    counts = found.counts()
    return (
        f"{counted(counts['files'], 'file')}, {counted(counts['networks'], 'network')} in "
        f"{counted(counts['lineages'], 'lineage')}; "
        f"{counted(counts['copies'], 'copy', 'copies')}, {counts['related']:,} related"
    )


def _show_unsupported(found: "Duplicates", folder: Path) -> None:
    """In one line how many files no family reads, and which of them hold the same tensors."""
    if not found.unsupported:
        return
    copies = found.unsupported_copies
    say(
        f"{counted(len(found.unsupported), 'more file')} of architectures that are not read, "
        f"{len(copies):,} with the tensors of another; `tnfn inspect` says why, `tnfn kin` "
        f"compares two of them by their rows"
    )
    for path, of in list(copies.items())[:_LISTED]:
        say(f"  {short(path, folder)} has the tensors of {short(of, folder)}")


def _find(
    sources: list[str], out: str | None, blocks: str, ray: str | None, as_json: bool
) -> "Duplicates":
    """From fingerprints computed in memory, or with a folder of results in between, or of one."""
    from transformer_nfn.hub import FingerprintTask, Results
    from transformer_nfn.kinship import group_copies

    if out is not None:
        bulk, figures = run_bulk(FingerprintTask(blocks), sources, out, ray, as_json)
        return _known_and_new(bulk.results, bulk.listing, figures["reasons"], as_json)
    if len(sources) == 1 and Results.there(sources[0]):
        return _known_and_new(Results(sources[0]), None, {}, as_json)
    check_there(*sources)
    found = few_fingerprints(sources, blocks, ray, as_json)
    return group_copies(found.done, found.broken, found.digests)


def _known_and_new(
    results: "Results", listing: Any, broken: dict[str, str], as_json: bool
) -> "Duplicates":
    """Compare what was not compared before, and keep what was found beside the fingerprints."""
    from transformer_nfn.hub import load_forest, save_forest, stored_digests, stored_index
    from transformer_nfn.jobs import track
    from transformer_nfn.kinship import group_copies

    def watch(steps: Any, total: int) -> Any:
        millions = total // 10**6
        return track(
            steps,
            millions,
            describe="million pairs",
            disable=as_json or millions < _LONG,
            weight=lambda pairs: pairs // 10**6,
        )

    index, known = stored_index(results, listing), load_forest(results)
    with interruptible():
        forest = index.forest(known, watch)
    if forest.keys != known.keys:
        save_forest(results, forest)
    return group_copies(index, broken, stored_digests(results, listing), forest)


def _write(rows: "list[Row]", to: Path) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import csv, parquet

    from transformer_nfn.checkpoints import CheckpointError
    from transformer_nfn.escaping import for_spreadsheet
    from transformer_nfn.kinship import Row

    columns: Any = zip(*rows, strict=True) if rows else [[] for _ in Row._fields]
    table = pa.table(dict(zip(Row._fields, columns, strict=True)))
    try:
        if to.suffix == ".csv":
            csv.write_csv(for_spreadsheet(table), to)
        else:
            parquet.write_table(table, to)
    except OSError as error:
        raise CheckpointError(f"{to}: {error.strerror or error}") from None


def _show(rows: "list[Row]", folder: Path) -> None:
    if not rows:
        return
    columns = ("lineage", "network", "path", "relation", "distance", "dtype")
    words = {"copy": "copy of", "related": "related to"}
    print_table(
        columns,
        (
            (
                str(row.lineage),
                str(row.network),
                short(row.path, folder),
                ""
                if row.relation is None or row.to is None
                else f"{words[row.relation]} {short(row.to, folder)}",
                "" if row.distance is None else f"{row.distance:.1e}",
                row.dtype,
            )
            for row in rows
        ),
        right=("lineage", "network", "distance"),
    )


def _show_broken(found: "Duplicates") -> None:
    """Files that could not be read, the first of them with the reason."""
    some = found.index.paths or found.unsupported
    for reason in list(found.broken.values())[:_BROKEN]:
        say(f"{'not read' if some else 'error'}: {reason}", err=True)
    if (more := len(found.broken) - _BROKEN) > 0:
        say(f"and {counted(more, 'more file')} could not be read: --json names them all", err=True)


def _draw(draw: Any, found: "Duplicates", folder: Path, path: Path) -> None:
    from transformer_nfn.checkpoints import CheckpointError

    try:
        draw(found, path, lambda file: short(file, folder))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None
