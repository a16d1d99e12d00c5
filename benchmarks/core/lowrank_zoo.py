"""τ of Transformer-NFN without a rank and with several, side by side on one zoo."""

import tempfile
from pathlib import Path
from typing import Any

from transformer_nfn.bench import Bench, comparisons, experiment_cells, finished_cells
from transformer_nfn.bench.protocol.experiments import RANKS
from transformer_nfn.bench.report.tables import variants_table
from transformer_nfn.jobs import Failed, InProcess


def ranks_on_zoo(
    zoo: Path, runs: int | None, splits: int, out: Path | None
) -> list[dict[str, Any]]:
    """Fit what is missing, print a table, and give its figures.

    Args:
        zoo: The zoo's folder.
        runs: Only the first N runs.
        splits: How many of the five splits.
        out: The folder of a benchmark, whose finished cells are not computed again.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = out or Path(temporary)
        cells = experiment_cells("ranks", str(zoo), splits=range(splits), runs=runs)
        bench = Bench(cells, folder)
        for outcome in bench.run(InProcess()):
            if isinstance(outcome, Failed):
                raise SystemExit(f"{outcome.job.cell} failed:\n{outcome.error}")
            record = outcome.result
            print(f"{outcome.job.cell}: τ {record['tau']:.3f}, {record['fit_seconds']:.0f} CPU s")
        wanted = [
            cell
            for cell in finished_cells(folder)
            if (cell.record["folder"], cell.record["runs"]) == (zoo.name, runs)
            and cell.record["checkpoints"] == "epochs"
        ]
    (comparison,) = comparisons(wanted, RANKS, splits=range(splits))
    print(f"{comparison.zoo}, {comparison.track} starts, {splits} splits")
    print(variants_table(comparison, "ranks", comparison.record["task"]))
    return [
        {
            "model": model,
            "tau": [round(tau, 4) for tau in comparison.by_split(model)],
            "parameters": comparison.mean_of(model, "parameters"),
            "fit_cpu_seconds": comparison.mean_of(model, "fit_seconds"),
        }
        for model in comparison.models
    ]
