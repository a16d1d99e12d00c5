"""Import the published Small Transformer Zoo into a zoo of our own format, shard by shard."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_nfn.jobs import Executor, Failed, ShardFolder
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.ownership import SWEEP_AGE, claim, data_url
from transformer_nfn.zoo.format.schema import ROW_GROUP, run_columns, zoo_table
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.published.metadata import SOURCE, Checkpoint, PublishedTask, read_metadata
from transformer_nfn.zoo.published.nets import published_row, read_state
from transformer_nfn.zoo.runs import content_hash

__all__ = ["SHAPES", "ImportJob", "Imported", "PublishedImport", "import_job", "published_row"]

#: The published nets; the number of word vectors leaves no trace in the weights.
SHAPES: dict[PublishedTask, NetShape] = {
    "mnist": NetShape(tokens=49, inputs=16),
    "ag_news": NetShape(tokens=32, inputs=0, classes=4),
}
ROWS = 256  # of the CSV in a job
PROBLEMS = 3  # that a job reports in words

_NAME = re.compile(r"published-([a-z_]+)-(\d{6,})-(\d{6,})-[0-9a-f]{12}\.parquet")


class ImportJob(NamedTuple):
    """All that a worker needs to import some lines of the CSV."""

    source: str
    task: PublishedTask
    url: str  # of the shards
    name: str
    checkpoints: tuple[Checkpoint, ...]


class Imported(NamedTuple):
    """What a job reports; `problems` says of the first unreadable files what is wrong."""

    name: str
    committed: bool  # False if another worker had committed the same shard before
    rows: int
    ok: int
    diverged: int
    unreadable: int
    problems: tuple[str, ...]


def import_job(job: ImportJob) -> Imported:
    """Read the files of some lines and commit their shard; a bad file is a row without weights."""
    shape, rows, weights, problems = SHAPES[job.task], [], [], []
    for checkpoint in job.checkpoints:
        one: np.ndarray | None = None
        try:
            row = published_row(read_state(Path(job.source), job.task, checkpoint.file), shape)
            status = "ok" if bool(row.isfinite().all()) else "diverged"
            one = row.numpy() if status == "ok" else None
        except StoreError as error:
            status = "unreadable"
            problems.append(f"line {checkpoint.line}: {error}"[:300])
        rows.append(_row(checkpoint, job.task, shape, status))
        weights.append(one)
    table = zoo_table(shape, rows, weights)
    committed = ShardFolder(job.url).commit(job.name, table, row_group_size=ROW_GROUP)
    ok = sum(one is not None for one in weights)
    return Imported(
        name=job.name,
        committed=committed,
        rows=len(rows),
        ok=ok,
        diverged=len(rows) - ok - len(problems),
        unreadable=len(problems),
        problems=tuple(problems[:PROBLEMS]),
    )


def _row(c: Checkpoint, task: PublishedTask, shape: NetShape, status: str) -> dict[str, Any]:
    shared = run_columns(
        c.hyperparameters,
        number=c.run,
        run_id=c.run_id,
        seed=c.seed,
        task=task,
        block=shape.block,
    )
    return {
        **shared,
        "checkpoint": c.name,
        "epoch": c.epoch,
        "status": status,
        "train_loss": None,
        "train_accuracy": None,
        "validation_accuracy": None,
        "test_accuracy": c.accuracy if status == "ok" else None,
        "test_loss": None,
        "calibration_error": None,
        "noisy_accuracy": None,
    }


class PublishedImport:
    """The state of an import, taken from a listing of the zoo's folder.

    A file that could not be read is imported as such: to try it again, delete its shard.

    Args:
        source: The published folder, with ``metadata/`` and the files that its CSV names.
        task: Which of the two zoos.
        url: The new zoo's folder, a path or an fsspec URL.
        limit: How many lines of the CSV, from the first; all if None. May be raised later.

    Raises:
        StoreError: If the CSV is not the published one, or the folder holds another zoo.
    """

    def __init__(
        self,
        source: str | Path,
        task: PublishedTask,
        url: str | Path,
        *,
        limit: int | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise StoreError(f"an import has at least one row, the limit is {limit}")
        self.source, self.task, self.url = Path(source).absolute(), task, str(url)
        self.metadata = read_metadata(self.source, task)
        every = len(self.metadata.checkpoints)
        self.total = every if limit is None else min(limit, every)
        self.root, self.shards = ShardFolder(url), ShardFolder(data_url(url))
        source_content = {"name": SOURCE, "task": task, "metadata_sha256": self.metadata.sha256}
        claim(self.root, {"source": source_content})
        self.shards.sweep(SWEEP_AGE)
        self.jobs = self._open_jobs()

    @property
    def missing(self) -> int:
        """Rows that are still to be imported."""
        return sum(len(job.checkpoints) for job in self.jobs)

    def run(
        self, executor: Executor, watch: Callable[[Iterator[Any]], Iterator[Any]] = iter
    ) -> list[Failed[ImportJob]]:
        """Import what is missing; what failed is returned, what was imported is committed.

        Args:
            executor: Where the jobs run; its workers must see the source.
            watch: Wraps the outcomes as they come, for a progress bar.
        """
        outcomes = watch(executor.run(import_job, self.jobs))
        return [outcome for outcome in outcomes if isinstance(outcome, Failed)]

    def _name(self, start: int, stop: int) -> str:
        rows = [
            [c.run, c.run_id, c.name, c.epoch, c.file, c.accuracy]
            for c in self.metadata.checkpoints[start:stop]
        ]
        digest = content_hash(rows)[:12]
        return f"published-{self.task}-{start:06d}-{stop:06d}-{digest}.parquet"

    def _open_jobs(self) -> list[ImportJob]:
        """The rows that no shard holds; jobs end at multiples of ROWS, whatever the limit."""
        done = np.zeros(len(self.metadata.checkpoints), dtype=bool)
        for name in sorted(self.shards.names()):
            match = _NAME.fullmatch(name)
            start, stop = (int(match[2]), int(match[3])) if match else (0, 0)
            if not start < stop <= len(done) or self._name(start, stop) != name:
                raise StoreError(f"shard {name!r} in {self.shards.url} is not of this import")
            if done[start:stop].any():
                raise StoreError(
                    f"shard {name!r} repeats rows of another in {self.shards.url}: delete it"
                )
            done[start:stop] = True
        jobs, start = [], 0
        while start < self.total:
            stop = start + 1
            while stop < self.total and stop % ROWS and done[stop] == done[start]:
                stop += 1
            if not done[start]:
                name, rows = self._name(start, stop), self.metadata.checkpoints[start:stop]
                jobs.append(ImportJob(str(self.source), self.task, self.shards.url, name, rows))
            start = stop
        return jobs
