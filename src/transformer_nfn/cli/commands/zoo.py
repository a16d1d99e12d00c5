"""`tnfn zoo`: plan, build, look at, check and export zoos of small trained transformers."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from transformer_nfn.cli.common import Json, Ray, interruptible, make_executor, show
from transformer_nfn.cli.early import (
    above_zero,
    check_package,
    check_there,
    check_zoos,
    known_device,
)
from transformer_nfn.cli.failures import tell_failures
from transformer_nfn.cli.help import PlainCommand, command_group
from transformer_nfn.cli.terminal import say, say_json
from transformer_nfn.cli.wording import duration

zoo_app = command_group("Build, check and export zoos of small trained transformers.")

RecipeName = Annotated[
    str,
    typer.Argument(
        help="digits-mini, mnist-small, mnist-small-residual, mnist-good, mnist-tuning, "
        "agnews-small, agnews-tuning, mnist-paper, agnews-paper, or the path of a TOML file."
    ),
]
Runs = Annotated[
    int | None, typer.Option(help="The first N runs of the recipe; its own number if not given.")
]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder with the tasks' data; the variable TNFN_DATA if not given."),
]
Seeds = Annotated[
    Literal["run", "shared"] | None,
    typer.Option(help="A seed for each run, or one shared by all, as in the paper."),
]
Folder = Annotated[str, typer.Argument(help="The zoo's folder or fsspec URL.")]


def _recipe(name: str, seeds: str | None) -> Any:
    from transformer_nfn.zoo import Recipe

    recipe = Recipe.load(name)
    return recipe if seeds is None else recipe.with_seeds(seeds)


@zoo_app.command(cls=PlainCommand)
def plan(
    recipe: RecipeName,
    runs: Runs = None,
    data: Data = None,
    seeds: Seeds = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPU cores like this one.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs instead of CPU cores.")] = 0,
    gpu_speed: Annotated[
        float,
        typer.Option(
            callback=above_zero,
            help="How many cores of this machine one GPU is worth; an assumption.",
        ),
    ] = 50.0,
    as_json: Json = False,
) -> None:
    """Say what a recipe costs.

    Runs, groups, rows, bytes, and time from a short calibration.

    Example: tnfn zoo plan mnist-small --runs 600 --cpus 2
    """
    from transformer_nfn.zoo import calibrate, load_task, make_plan

    chosen = _recipe(recipe, seeds)
    task = load_task(chosen.task, data=data, patch=chosen.patch)
    planned = make_plan(chosen, task, chosen.runs if runs is None else runs)
    speed = calibrate(chosen, task)
    one_core = speed.seconds(planned)
    workers = gpus * gpu_speed if gpus else float(cpus)
    figures: dict[str, Any] = {
        **planned._asdict(),
        "steps_a_second_on_one_core": round(speed.steps, 1),
        "seconds_on_one_core": round(one_core),
        "seconds": round(one_core / workers),
        "cpus": 0 if gpus else cpus,
        "gpus": gpus,
    }
    if as_json:
        say_json(figures)
        return
    say(f"{chosen.name}: {planned.runs:,} runs in {planned.groups:,} groups")
    say(f"store:       {planned.rows:,} rows, {planned.bytes / 1e9:.2f} GB")
    say(f"work:        {planned.steps:,} steps, {planned.evaluated:,} examples evaluated")
    say(f"this core:   {speed.steps:,.0f} steps/s, {duration(one_core)} for all of it")
    where = f"{gpus} GPUs, each taken as {gpu_speed:g} such cores" if gpus else f"{cpus} such cores"
    say(f"on {where}: {duration(one_core / workers)}")


@zoo_app.command(cls=PlainCommand)
def build(
    recipe: RecipeName,
    out: Annotated[str, typer.Option(help="The zoo's folder or fsspec URL; made if need be.")],
    runs: Runs = None,
    data: Data = None,
    seeds: Seeds = None,
    ray: Ray = None,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(callback=known_device, help="Where to train; on cuda a GPU for each job."),
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Train what is missing of a zoo.

    Each group of runs is kept when it is finished. It can be interrupted: the same command
    continues.

    Example: tnfn zoo build digits-mini --out digits-mini --ray
    """
    check_package("matplotlib", "the histogram of the data card", "zoo")
    from transformer_nfn.jobs import track
    from transformer_nfn.zoo import Build, summarize, write_card
    from transformer_nfn.zoo.dataset import Zoo

    chosen = _recipe(recipe, seeds)
    building = Build(chosen, out, runs=runs, data=data, device=device)
    total, missing = building.runs, building.missing
    if missing < total:
        say(f"{total - missing} of {total} runs are there already", err=True)
    failures = []
    if missing:
        with interruptible(), make_executor(ray, gpus=0 if device == "cpu" else 1) as executor:
            failures = building.run(
                executor,
                lambda outcomes: track(
                    outcomes,
                    total,
                    total - missing,
                    f"{chosen.name}: runs",
                    weight=lambda outcome: len(outcome.job.group.runs),
                ),
            )
    tell_failures(
        failures,
        out,
        "groups",
        name=lambda job: job.group.name,
        file=lambda job: job.group.name.removesuffix(".parquet"),
    )
    if len(failures) == len(building.groups) > 0:
        raise typer.Exit(1)
    zoo = Zoo(out)
    written = write_card(zoo)
    figures = summarize(zoo)
    if as_json:
        say_json({**figures, "failed_groups": len(failures)})
    else:
        say(
            f"{out}: {figures['runs']:,} runs, {figures['rows']:,} rows in {figures['shards']} "
            f"shards, {figures['bytes'] / 1e6:,.0f} MB; data card: {', '.join(written)}"
        )
    if failures:
        raise typer.Exit(1)


@zoo_app.command("import")
def import_published(
    source: Annotated[Path, typer.Argument(help="Folder with metadata/ and the .pt files.")],
    task: Annotated[Literal["mnist", "ag_news"], typer.Option(help="Which of its two zoos.")],
    out: Annotated[str, typer.Option(help="The zoo's folder or fsspec URL; made if need be.")],
    limit: Annotated[int | None, typer.Option(help="Only the first N files.")] = None,
    ray: Ray = None,
    as_json: Json = False,
) -> None:
    """Convert the published Small Transformer Zoo to this format.

    It can be interrupted: the same command continues.

    Example: tnfn zoo import Small-Transformer-Zoo --task mnist --out mnist-published
    """
    check_there(str(source))
    check_package("matplotlib", "the histogram of the data card", "zoo")
    from transformer_nfn.jobs import track
    from transformer_nfn.zoo import PublishedImport, summarize, write_card
    from transformer_nfn.zoo.dataset import Zoo

    importing = PublishedImport(source, task, out, limit=limit)
    failures = []
    if importing.missing:
        with interruptible(), make_executor(ray) as executor:
            failures = importing.run(
                executor,
                lambda outcomes: track(
                    outcomes,
                    importing.total,
                    importing.total - importing.missing,
                    f"{task}: files",
                    weight=lambda outcome: len(outcome.job.checkpoints),
                ),
            )
    tell_failures(
        failures,
        out,
        "shards",
        name=lambda job: job.name,
        file=lambda job: job.name.removesuffix(".parquet"),
    )
    if not failures or len(failures) < len(importing.jobs):
        zoo = Zoo(out)
        write_card(zoo)
        show(summarize(zoo), as_json)
    if failures:
        raise typer.Exit(1)


@zoo_app.command("from-checkpoints", cls=PlainCommand)
def from_checkpoints(
    source: Annotated[Path, typer.Argument(help="Folder with the safetensors files.")],
    accuracies: Annotated[
        Path, typer.Argument(help="A .csv with path and accuracy, and perhaps group.")
    ],
    out: Annotated[str, typer.Option(help="The zoo's folder or fsspec URL; made if need be.")],
    as_json: Json = False,
) -> None:
    """Make a zoo of networks that you have trained yourself.

    Safetensors files of one architecture and size; path is below the folder, accuracy from 0 to 1.
    Networks of one group, such as checkpoints of one training, stay on one side of every split.

    Files that `tnfn zoo export` wrote can be read by all models; of others the tensors are taken
    by name, and only models that need no blocks read them. OUT/files.csv says which row is which.

    Example: tnfn zoo from-checkpoints nets accuracies.csv --out mine
    """
    check_there(str(source), str(accuracies))
    check_package("matplotlib", "the histogram of the data card", "zoo")
    from transformer_nfn.zoo import gather, write_card
    from transformer_nfn.zoo.dataset import Zoo

    made = gather(source, accuracies, out)
    write_card(Zoo(out))
    show({"zoo": out, **made._asdict()}, as_json)


@zoo_app.command(cls=PlainCommand)
def info(folder: Folder, as_json: Json = False) -> None:
    """Show counts, accuracies and the time a zoo took.

    Example: tnfn zoo info digits-mini
    """
    check_zoos(folder)
    from transformer_nfn.zoo import summarize
    from transformer_nfn.zoo.dataset import Zoo

    show(summarize(Zoo(folder)), as_json)


@zoo_app.command(cls=PlainCommand)
def verify(folder: Folder, as_json: Json = False) -> None:
    """Check a zoo's checksums, counts, NaN and duplicates.

    Exit code 1 if something is wrong.

    Example: tnfn zoo verify digits-mini
    """
    check_zoos(folder)
    from transformer_nfn.zoo import verify as check
    from transformer_nfn.zoo.dataset import Zoo

    checked = list(check(Zoo(folder)))
    problems = {one.name: one.problems for one in checked if one.problems}
    rows = sum(one.rows for one in checked)
    if as_json:
        say_json({"rows": rows, "shards": len(checked), "problems": problems})
    else:
        for name, found in problems.items():
            for problem in found:
                say(f"{name}: {problem}")
        say(
            f"{folder}: {rows:,} rows in {len(checked)} shards, "
            + (f"{len(problems)} with problems" if problems else "all sound")
        )
    if problems:
        raise typer.Exit(1)


@zoo_app.command(cls=PlainCommand)
def card(folder: Folder, as_json: Json = False) -> None:
    """Write README.md and the histogram into a zoo's folder again.

    Example: tnfn zoo card digits-mini
    """
    check_zoos(folder)
    check_package("matplotlib", "the histogram of the data card", "zoo")
    from transformer_nfn.zoo import write_card
    from transformer_nfn.zoo.dataset import Zoo

    show({"zoo": folder, "written": write_card(Zoo(folder))}, as_json)


@zoo_app.command(cls=PlainCommand)
def publish(
    folder: Folder,
    out: Annotated[str, typer.Option(help="A new folder or fsspec URL.")],
    as_json: Json = False,
) -> None:
    """Copy a zoo for the Hugging Face hub: train, validation and test rows in files of their own.

    Example: tnfn zoo publish mnist-small --out mnist-small-hub
    """
    check_zoos(folder)
    check_package("matplotlib", "the histogram of the data card", "zoo")
    from transformer_nfn.zoo import publish as write
    from transformer_nfn.zoo.dataset import Zoo

    show({"folder": out, "written": write(Zoo(folder), out)}, as_json)


@zoo_app.command(cls=PlainCommand)
def export(
    folder: Folder,
    out: Annotated[Path, typer.Option(help="Where the safetensors files go.")],
    run: Annotated[list[int] | None, typer.Option(help="A run by its number; repeatable.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help='One checkpoint, such as "best" or "100".')
    ] = None,
    min_accuracy: Annotated[
        float, typer.Option(help="Only rows with at least this test accuracy, 0 to 1.")
    ] = 0.0,
    as_json: Json = False,
) -> None:
    """Write chosen networks as safetensors, with the row's columns as metadata.

    Example: tnfn zoo export digits-mini --run 0 --run 7 --checkpoint best --out nets
    """
    check_zoos(folder)
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    from transformer_nfn.zoo import export as write
    from transformer_nfn.zoo.dataset import Zoo

    where = pc.field("test_accuracy") >= min_accuracy
    if run:
        where = where & pc.field("run").isin(run)
    if checkpoint is not None:
        where = where & (pc.field("checkpoint") == checkpoint)
    written = write(Zoo(folder), where, out)
    if not written:
        say(f"error: no row of {folder} is chosen by these options", err=True)
        raise typer.Exit(1)
    show({"folder": str(out), "files": len(written), "first": written[0].name}, as_json)
