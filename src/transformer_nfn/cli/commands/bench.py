"""`tnfn bench`: predict accuracy from weights, against strong baselines."""

from pathlib import Path
from typing import Annotated, Any

import typer

from transformer_nfn.cli.commands.benchoptions import (
    Checkpoints,
    Device,
    ExperimentName,
    Models,
    Out,
    Runs,
    Seeds,
    Splits,
    TestZoo,
    TrainRuns,
    Zoos,
)
from transformer_nfn.cli.commands.benchoutside import rows, score
from transformer_nfn.cli.common import Json, Ray, interruptible, make_executor, show
from transformer_nfn.cli.early import check_package, check_there, check_zoos, chosen_splits
from transformer_nfn.cli.failures import tell_failures
from transformer_nfn.cli.help import PlainCommand, command_group
from transformer_nfn.cli.terminal import say, say_json, styled
from transformer_nfn.cli.wording import duration

bench_app = command_group("Compare models that predict accuracy from weights.")


def _cells(
    zoos: list[str],
    models: str | None,
    splits: str,
    seeds: int,
    experiment: Any,
    checkpoints: Any,
    runs: int | None,
    train_runs: int | None,
    test_zoo: str | None,
) -> list[Any]:
    splits_wanted = chosen_splits(splits)
    check_zoos(*zoos, test_zoo)
    from transformer_nfn.bench import experiment_cells

    chosen = None if models is None else [name.strip() for name in models.split(",")]
    return [
        cell
        for zoo in zoos
        for cell in experiment_cells(
            experiment,
            zoo,
            models=chosen,
            splits=splits_wanted,
            seeds=range(seeds),
            checkpoints=checkpoints,
            runs=runs,
            train_runs=train_runs,
            test_zoo=test_zoo,
        )
    ]


@bench_app.command(cls=PlainCommand)
def models(as_json: Json = False) -> None:
    """List the models, and those that were saved.

    Example: tnfn bench models
    """
    from transformer_nfn.bench import MODELS, load_installed, saved_names

    load_installed()
    if as_json:
        listed = {
            name: {
                "title": kind.title,
                "what": kind.what,
                "origin": kind.origin,
                "tier": kind.tier,
                "invariant": kind.invariant,
            }
            for name, kind in MODELS.items()
        }
        say_json({"models": listed, "saved": saved_names()})
        return
    for name, kind in MODELS.items():
        say(f"{name:<26}{kind.title}: {kind.what}")
    say(f"saved: {', '.join(saved_names()) or 'none'}")


@bench_app.command(cls=PlainCommand)
def plan(
    zoo: Zoos,
    out: Out = Path("bench"),
    models: Models = None,
    splits: Splits = "5",
    seeds: Seeds = 1,
    experiment: ExperimentName = "main",
    checkpoints: Checkpoints = "epochs",
    runs: Runs = None,
    train_runs: TrainRuns = None,
    test_zoo: TestZoo = None,
    cpus: Annotated[int, typer.Option(min=1, help="CPU cores like this one.")] = 1,
    as_json: Json = False,
) -> None:
    """Say what a run would cost.

    From finished cells, or a short calibration of each model.

    Example: tnfn bench plan --zoo digits-mini --splits 5 --cpus 2
    """
    chosen = _cells(zoo, models, splits, seeds, experiment, checkpoints, runs, train_runs, test_zoo)
    from transformer_nfn.bench import Bench, estimate_seconds

    bench = Bench(chosen, out)
    seconds = estimate_seconds(
        [job.cell for job in bench.jobs], bench.out, lambda text: say(text, err=True)
    )
    total = sum(seconds.values(), start=0.0)
    by_model: dict[str, float] = {}
    for cell, cost in seconds.items():
        by_model[cell.model] = by_model.get(cell.model, 0.0) + cost
    if as_json:
        figures = {
            "cells": len(bench.names),
            "missing": len(bench.jobs),
            "cpu_seconds": float(f"{total:.3g}"),
            "seconds": round(total / cpus),
            "by_model": {name: round(cost, 1) for name, cost in by_model.items()},
        }
        say_json(figures)
        return
    say(f"{len(bench.names)} cells, {len(bench.names) - len(bench.jobs)} finished")
    for name, cost in sorted(by_model.items(), key=lambda item: -item[1]):
        say(f"  {name:<26}{duration(cost)}")
    say(f"left: {duration(total)} on one core, {duration(total / cpus)} on {cpus}")


@bench_app.command(cls=PlainCommand)
def run(
    zoo: Zoos,
    out: Out,
    models: Models = None,
    splits: Splits = "5",
    seeds: Seeds = 1,
    experiment: ExperimentName = "main",
    checkpoints: Checkpoints = "epochs",
    runs: Runs = None,
    train_runs: TrainRuns = None,
    test_zoo: TestZoo = None,
    ray: Ray = None,
    device: Device = "cpu",
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Save every fitted model in OUT/models.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write OUT/report at the end.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Fit and test what is missing, then write the report.

    It can be interrupted: the same command continues.

    Example: tnfn bench run --zoo digits-mini --out bench --ray
    """
    if report:
        check_package("matplotlib", "the report", "bench")
    chosen = _cells(zoo, models, splits, seeds, experiment, checkpoints, runs, train_runs, test_zoo)
    from rich.console import Console

    from transformer_nfn.bench import Bench, write_report
    from transformer_nfn.jobs import Failed, track

    bench = Bench(chosen, out, device=device, keep_models=keep_models)
    total, missing = len(bench.names), len(bench.jobs)
    if missing < total:
        say(f"{total - missing} of {total} cells are finished already", err=True)
    console = Console(stderr=True)
    failures, records = [], []
    if missing:
        with interruptible(), make_executor(ray, gpus=0 if device == "cpu" else 1) as executor:
            out.mkdir(parents=True, exist_ok=True)  # or nothing could be kept of hours of work
            outcomes = bench.run(
                executor,
                lambda made: track(made, total, total - missing, "cells", console=console),
                None if ray else _epoch_printer(console),
            )
            for outcome in outcomes:
                if isinstance(outcome, Failed):
                    failures.append(outcome)
                    continue
                record = outcome.result
                records.append(record)
                moved = record["tau_moved"]
                after = "" if moved is None else f", moved by the group {moved:.3f}"
                told = f"{outcome.job.cell}: τ {record['tau']:.3f}{after}"
                told += f", {duration(record['fit_seconds'])}"
                console.print(styled(told), soft_wrap=True)
    tell_failures(
        failures, str(out), "cells", name=lambda job: str(job.cell), file=lambda job: job.name
    )
    written = write_report(out, Path(out) / "report") if report and len(failures) < total else []
    figures = {
        "out": str(out),
        "cells": total,
        "computed": len(records),
        "failed": len(failures),
        "written": [str(path) for path in written],
    }
    show(figures, as_json)
    if failures:
        raise typer.Exit(1)


def _epoch_printer(console: Any) -> Any:
    """Says every 15 s how far the fit under way is."""
    import time

    last = time.monotonic()

    def tell(cell: Any, step: Any) -> None:
        nonlocal last
        if time.monotonic() - last > 15:
            last = time.monotonic()
            done = f"{cell}: epoch {step.done}/{step.total}"
            console.print(styled(f"{done}, validation τ {step.validation_tau:.3f}"), soft_wrap=True)

    return tell


@bench_app.command(cls=PlainCommand)
def report(
    out: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of results, as given to `bench run`, or of reports. What they have of "
            "one build of a zoo adds up; of several builds the largest counts."
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(help="Where to write; report in the first if not given.")
    ] = None,
    notes: Annotated[
        Path | None,
        typer.Option(help="Markdown for the first page; {tau:ZOO/TRACK/MODEL} becomes a figure."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of all finished cells.

    One page with all models at a glance, pages with the details, pictures, results.json and all
    predictions, from which a report can be made again without a fit.

    Example: tnfn bench report bench --to docs/results
    """
    check_there(*map(str, out), None if notes is None else str(notes))
    check_package("matplotlib", "the report", "bench")
    from transformer_nfn.bench import write_report

    written = write_report(out, to or out[0] / "report", notes)
    show({"written": [str(path) for path in written]}, as_json)


@bench_app.command(cls=PlainCommand)
def fit(
    zoo: Annotated[str, typer.Option(help="A zoo's folder.")],
    model: Annotated[str, typer.Option(help="Which model; `tnfn bench models` lists them.")],
    name: Annotated[str, typer.Option(help="The name under which it is saved.")],
    split: Annotated[int, typer.Option(min=0, max=4, help="Which split it is fitted to.")] = 0,
    checkpoints: Checkpoints = "epochs",
    runs: Runs = None,
    all_runs: Annotated[
        bool,
        typer.Option(
            "--all-runs",
            help="Save a second model, fitted to the test runs as well; the τ shown is that of the "
            "first. A tenth of the runs is still kept for early stopping.",
        ),
    ] = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Fit one model and save it for `tnfn rank`.

    Example: tnfn bench fit --zoo digits-mini --model invariants --name digits
    """
    check_zoos(zoo)
    from rich.console import Console

    from transformer_nfn.bench import Cell, fit_and_save, named_folder

    folder = named_folder(name)
    cell = Cell(zoo=zoo, model=model, split=split, checkpoints=checkpoints, runs=runs)
    with interruptible():
        watch = _epoch_printer(Console(stderr=True))
        record = fit_and_save(cell, folder, device, watch, all_runs=all_runs)
    moved = record["tau_moved"]
    figures = {
        "name": name,
        "folder": str(folder),
        "tau": round(record["tau"], 4),
        "tau_moved": None if moved is None else round(moved, 4),
        "train_rows": record["train_rows"],
        "validation_rows": record["validation_rows"],
        "fit_seconds": round(record["fit_seconds"], 1),
    }
    if moved is None and not as_json:  # there is no group where blocks are not known
        del figures["tau_moved"]
    show(figures, as_json)


bench_app.command(cls=PlainCommand)(rows)
bench_app.command(cls=PlainCommand)(score)
