"""Run the cells that are missing."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from transformer_nfn.bench.models.registry import check_installed, load_installed
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import CellJob, WatchCell, cells_url, run_cell
from transformer_nfn.bench.protocol.enough import check_enough
from transformer_nfn.bench.protocol.readable import check_known
from transformer_nfn.jobs import Done, Executor, Failed, ShardFolder


class Bench:
    """A benchmark under way: what is finished follows from a listing of its folder.

    Args:
        cells: What is to be computed.
        out: The folder of the results, on a disk that all workers share.
        device: Where neural models are trained.
        keep_models: Save every fitted model as well.

    Raises:
        BenchError: If a zoo has too few runs for a cell, or a package is missing: before any work.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        out: str | Path,
        *,
        device: str = "cpu",
        keep_models: bool = False,
    ) -> None:
        load_installed()  # a broken one would else stop the report, after the work
        self.out = str(Path(out).absolute())
        there = ShardFolder(cells_url(self.out)).names()
        named = {cell.name: cell for cell in cells}
        self.names = list(named)
        self.jobs = [
            CellJob(cell, name, self.out, device, keep_models)
            for name, cell in named.items()
            if f"{name}.parquet" not in there
        ]
        missing = [job.cell for job in self.jobs]
        check_known(missing)
        check_enough(missing)
        check_installed(cell.model for cell in missing)

    def run(
        self,
        executor: Executor,
        watch: Callable[[Iterator[Any]], Iterator[Any]] = iter,
        watch_fit: WatchCell | None = None,
    ) -> Iterator[Done[CellJob, dict[str, Any]] | Failed[CellJob]]:
        """Compute what is missing; outcomes as they come. Finished cells are committed.

        Args:
            executor: Where the jobs run.
            watch: Wraps the outcomes, for a progress bar.
            watch_fit: Is told of each epoch; only where jobs run in this process.
        """
        function = run_cell if watch_fit is None else partial(run_cell, watch=watch_fit)
        yield from watch(executor.run(function, self.jobs))
