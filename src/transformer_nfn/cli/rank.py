"""`tnfn rank`: order checkpoints by predicted accuracy."""

import json
from pathlib import Path
from typing import Annotated

import typer

from transformer_nfn.cli.common import Json


def rank(
    paths: Annotated[list[Path], typer.Argument(help="Safetensors files, or folders of them.")],
    model: Annotated[str, typer.Option(help="A saved model: its name, or the path of its folder.")],
    as_json: Json = False,
) -> None:
    """Rank checkpoints by the accuracy that a model predicts from their weights, the best first.

    Warns of those that are unlike what the model was trained on. Exit code 1 if a file could not
    be read.

    Example: tnfn rank --model digits nets/
    """
    from transformer_nfn.bench import checkpoint_files, load_predictor, rank_files

    ranked = rank_files(load_predictor(model), checkpoint_files(paths))
    if as_json:
        typer.echo(json.dumps({"model": model, "ranked": [one._asdict() for one in ranked]}))
    else:
        for number, one in enumerate(ranked, start=1):
            figure = "     -" if one.predicted is None else f"{100 * one.predicted:5.1f} %"
            typer.echo(f"{number:>4}  {figure}  {one.path}")
            if one.warning:
                typer.echo(f"      warning: {one.path}: {one.warning}", err=True)
    if any(one.predicted is None for one in ranked):
        raise typer.Exit(1)
