"""`tnfn rank`: order checkpoints by predicted accuracy."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from transformer_nfn.cli.bulk import Sources, in_words, run_bulk
from transformer_nfn.cli.common import Json, Ray
from transformer_nfn.cli.early import check_some_there, check_there
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json

if TYPE_CHECKING:
    from transformer_nfn.bench import Ranked


def rank(
    sources: Sources,
    model: Annotated[str, typer.Option(help="A saved model: its name, or the path of its folder.")],
    out: Annotated[
        str | None,
        typer.Option(
            help="FOLDER of results, for many files: a second run does only what is new or changed."
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="With --out: how many of the best are shown.")] = 20,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Rank checkpoints by predicted accuracy.

    The accuracy that a fitted model predicts from their weights, the best first.

    Warns of those that are unlike what the model was trained on. Exit code 1 if a file could not
    be read; with --out, where such files are rows with a reason, if none could be. Manifests, URLs
    and --ray need --out.

    Example: tnfn rank --model digits nets/
    """
    if out is not None:
        check_some_there(sources)
        _many(sources, model, out, top, ray, as_json)
        return
    if ray is not None:
        raise typer.BadParameter("--ray needs --out FOLDER")
    if far := [source for source in sources if "://" in source]:
        raise typer.BadParameter(f"a URL such as {far[0]} needs --out FOLDER")
    check_there(*sources)
    from transformer_nfn.bench import checkpoint_files, load_predictor, rank_files

    ranked = rank_files(load_predictor(model), checkpoint_files(sources))
    if as_json:
        say_json({"model": model, "ranked": [one._asdict() for one in ranked]})
    else:
        _show(ranked)
    if any(one.predicted is None for one in ranked):
        raise typer.Exit(1)


def _many(
    sources: list[str], model: str, out: str, top: int, ray: str | None, as_json: bool
) -> None:
    from transformer_nfn.hub import RankTask, stored_ranks

    if os.path.isdir(model):  # workers have another working folder
        model = os.path.abspath(model)
    bulk, figures = run_bulk(RankTask(model), sources, out, ray, as_json)
    best = stored_ranks(bulk.results, bulk.listing, top)
    if as_json:
        say_json({**figures, "ranked": [one._asdict() for one in best]})
    else:
        _show(best)
        say(in_words(figures))
    if not best:
        raise typer.Exit(1)


def _show(ranked: "list[Ranked]") -> None:
    rows = [
        (
            str(number),
            "" if one.predicted is None else f"{100 * one.predicted:.1f} %",
            one.path,
        )
        for number, one in enumerate(ranked, start=1)
    ]
    print_table(("place", "accuracy", "path"), rows, right=("place", "accuracy"))
    for one in ranked:
        if one.warning:
            what = "error" if one.predicted is None else "warning"
            say(f"{what}: {one.path}: {one.warning}", err=True)
