"""`tnfn bench rows` and `tnfn bench score`: predictions that any other program made."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from transformer_nfn.cli.commands.benchoptions import Checkpoints, Runs
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.early import check_there, check_writable, check_zoos
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json

Split = Annotated[int, typer.Option(min=0, max=4, help="Which of the five splits.")]


def rows(
    zoo: Annotated[str, typer.Argument(help="A zoo's folder.")],
    out: Annotated[Path, typer.Option(help="The table to write, .parquet or .csv.")],
    split: Split = 0,
    checkpoints: Checkpoints = "epochs",
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Write the rows of a split, and on which side each is.

    Columns: run, run_id, checkpoint, epoch, side (train, validation or test), and test_accuracy,
    which is empty for test rows. The weights are in ZOO/data under the same run_id and checkpoint.

    Example: tnfn bench rows digits-mini --split 0 --out rows.parquet
    """
    check_zoos(zoo)
    check_writable(out, (".parquet", ".csv"))
    from collections import Counter

    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyarrow import csv

    from transformer_nfn.bench import sides_table
    from transformer_nfn.escaping import for_spreadsheet

    table = sides_table(zoo, split, checkpoints, runs)
    if out.suffix == ".csv":
        csv.write_csv(for_spreadsheet(table), str(out))
    else:
        pq.write_table(table, str(out))
    sides = Counter(table["side"].to_pylist())
    figures = {side: sides[side] for side in ("train", "validation", "test")}
    show({"written": str(out), "split": split, **figures}, as_json)


def score(
    predictions: Annotated[
        Path, typer.Argument(help="A .parquet or .csv with run_id, checkpoint and predicted.")
    ],
    zoo: Annotated[str, typer.Option(help="A zoo's folder.")],
    split: Split = 0,
    name: Annotated[
        str | None, typer.Option(help="What the model is called; the file's name if not given.")
    ] = None,
    tier: Annotated[
        Literal["weights", "queries", "inputs", "labels", "hyperparameters"],
        typer.Option(help="What the model was given: it is compared within this tier."),
    ] = "weights",
    out: Annotated[
        Path | None, typer.Option(help="Folder of a benchmark, to which they are added.")
    ] = None,
    checkpoints: Checkpoints = "epochs",
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Score predictions that another program made of a split's test rows.

    With --out they become a cell of that benchmark: `tnfn bench report` shows them beside the
    models there, as predictions from outside. Nothing is fitted.

    Example: tnfn bench score mine-0.parquet --zoo digits-mini --split 0 --name mine --out bench
    """
    check_there(str(predictions))
    check_zoos(zoo)
    from transformer_nfn.bench import (
        TIERS,
        finished_cells,
        keep_outside,
        outside_cell,
        read_predictions,
        standing,
    )

    cell = outside_cell(
        read_predictions(predictions),
        zoo,
        split,
        name=predictions.stem if name is None else name,
        tier=tier,
        checkpoints=checkpoints,
        runs=runs,
    )
    placed = standing(cell, [] if out is None else finished_cells(out))
    kept = None if out is None else str(keep_outside(cell, out))
    names = [one.model for one in placed]
    mine = placed[names.index(cell.record["model"])]
    tested = len(set(cell.table["run_id"].to_pylist()))
    if as_json:
        figures = {
            "name": mine.model,
            "zoo": cell.record["zoo"],
            "split": split,
            "tier": tier,
            "test_rows": cell.record["test_rows"],
            "test_runs": tested,
            "tau": round(mine.tau.mean, 6),
            "interval": [round(mine.tau.low, 6), round(mine.tau.high, 6)],
            "place": names.index(mine.model) + 1,
            "of": len(placed),
            "tier_on_this_split": [
                {"model": one.model, "tau": round(one.tau.mean, 6), "order": one.order}
                for one in placed
            ],
            "cell": kept,
        }
        say_json(figures)
        return
    say(
        f"{cell.record['zoo']}, split {split}: {cell.record['test_rows']:,} rows of {tested:,} "
        f"runs; tier: {TIERS[tier]}"
    )
    table = [
        (
            str(place),
            one.title,
            f"{one.tau.mean:.3f}",
            f"{one.tau.low:.2f} to {one.tau.high:.2f}",
            "" if one.order is None else one.order,
        )
        for place, one in enumerate(placed, start=1)
    ]
    columns = ("place", "model", "τ", "95 % interval", f"{mine.model} is")
    print_table(columns, table, right=("place", "τ"))
    if kept is not None:
        say(f"kept as {kept}; `tnfn bench report {out}` shows it")
