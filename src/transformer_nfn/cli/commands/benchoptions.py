"""The options that commands of `tnfn bench` share."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from transformer_nfn.cli.early import known_device

Zoos = Annotated[list[str], typer.Option("--zoo", help="A zoo's folder; may be given repeatedly.")]
Models = Annotated[
    str | None,
    typer.Option(
        help="Names with commas between (`tnfn bench models`); the experiment's own if not given."
    ),
]
Splits = Annotated[
    str,
    typer.Option(
        metavar="<int|list>",
        help="How many of the five splits, or which, numbered from 0, with a comma: 1,2 or, for "
        "one, 1,.",
    ),
]
Seeds = Annotated[
    int, typer.Option(min=1, help="Fits of each model in each split, which differ in their seed.")
]
ExperimentName = Annotated[
    Literal[
        "main",
        "components",
        "channels",
        "ranks",
        "augmentation",
        "thresholds",
        "sizes",
        "across",
        "questions",
        "held-out",
    ],
    typer.Option(help="The main table, or one of the other experiments."),
]
Checkpoints = Annotated[
    Literal["epochs", "last", "best", "all"],
    typer.Option(help="Which rows of a run count: its kept epochs, the last, the best, or all."),
]
Runs = Annotated[int | None, typer.Option(min=1, help="Only the first N runs of each zoo.")]
TrainRuns = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Learn from the first N runs only, for costly models; test on the same runs as "
        "others. The tables say so.",
    ),
]
TestZoo = Annotated[
    str | None, typer.Option(help="Another zoo's folder, which `across` tests all rows of.")
]
Out = Annotated[Path, typer.Option(help="Folder of the results; made if need be.")]
Device = Annotated[
    Literal["cpu", "cuda"],
    typer.Option(callback=known_device, help="Where neural models are trained."),
]
