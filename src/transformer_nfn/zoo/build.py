"""Build a zoo: train what is missing, group by group, and commit each group as a shard."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from transformer_nfn.jobs import Done, Executor, Failed, ShardFolder, no_subnormals, one_thread
from transformer_nfn.zoo.format.ownership import SWEEP_AGE, check_owner, claim, data_url, logs_url
from transformer_nfn.zoo.format.schema import ROW_GROUP, run_columns, zoo_table
from transformer_nfn.zoo.groups import Group, open_groups
from transformer_nfn.zoo.recipe import Recipe
from transformer_nfn.zoo.tasks import DataError, Task, load_task
from transformer_nfn.zoo.training.compiled import find_library
from transformer_nfn.zoo.training.trainer import GroupTrainer


class GroupJob(NamedTuple):
    """All that a worker needs to train one group."""

    recipe: Recipe
    group: Group
    url: str  # of the shards
    data: str | None
    device: str


class Trained(NamedTuple):
    """What a job reports: everything else is in its shard."""

    name: str
    committed: bool  # False if another worker had committed the same shard before
    runs: int
    ok: int
    diverged: int
    compiled: bool  # by compiled passes, else by torch: equal up to rounding


@lru_cache(maxsize=2)
def _task(name: str, data: str | None, patch: int | None) -> Task:
    return load_task(name, data=data, patch=patch)


def train_job(job: GroupJob) -> Trained:
    """Train a group and commit its shard."""
    recipe = job.recipe
    with one_thread(job.device), no_subnormals():
        task = _task(recipe.task, job.data, recipe.patch)
        if task.digest != recipe.data:  # of another machine
            raise DataError(
                f"the data of {recipe.task} are not those that this zoo was begun with: copy "
                "them from where the build was started"
            )
        rows, weights = _train(job, task)
    table = zoo_table(recipe.shape, rows, weights)
    committed = ShardFolder(job.url).commit(job.group.name, table, row_group_size=ROW_GROUP)
    ok = sum(row["status"] == "ok" for row in rows)
    compiled = find_library(recipe.shape, job.device, torch.float32) is not None
    return Trained(job.group.name, committed, len(job.group.runs), ok, len(rows) - ok, compiled)


def _train(job: GroupJob, task: Task) -> tuple[list[dict[str, Any]], list[Any]]:
    recipe, group = job.recipe, job.group
    size = recipe.lockstep if job.device == "cpu" else len(group.runs)
    rows, weights = [], []
    for first in range(0, len(group.runs), size):
        runs = group.runs[first : first + size]
        trainer = GroupTrainer(recipe.shape, task, recipe.training, runs, device=job.device)
        for number, run, checkpoints in zip(
            group.numbers[first : first + size], runs, trainer.train(), strict=True
        ):
            shared = run_columns(
                run.hyperparameters,
                number=number,
                run_id=run.id,
                seed=run.seed,
                task=recipe.task,
                block=recipe.block,
            )
            for checkpoint in checkpoints:
                rows.append(
                    {
                        **shared,
                        "checkpoint": checkpoint.name,
                        "epoch": checkpoint.epoch,
                        "status": checkpoint.status,
                        "train_loss": checkpoint.train_loss,
                        "train_accuracy": checkpoint.train_accuracy,
                        "validation_accuracy": checkpoint.validation_accuracy,
                        **checkpoint.tested._asdict(),
                    }
                )
                one = checkpoint.weights
                weights.append(None if one is None else one.numpy())
    return rows, weights


class Build:
    """The state of a zoo under construction, taken from a listing of its folder.

    Args:
        recipe: What to build.
        url: The zoo's folder, a path or an fsspec URL.
        runs: How many of the recipe's runs; its own number if None.
        data: Folder with the tasks' data; TNFN_DATA if None.
        device: Where to train.

    Raises:
        StoreError: If the folder holds another zoo, or one of other data.
        DataError: If the task's data are missing.
    """

    def __init__(
        self,
        recipe: Recipe,
        url: str | Path,
        *,
        runs: int | None = None,
        data: str | Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.url, self.device = str(url), device
        self.runs = recipe.runs if runs is None else runs
        self.data = None if data is None else str(Path(data).absolute())
        self.root, self.shards = ShardFolder(url), ShardFolder(data_url(url))
        recipe.first_runs(self.runs)  # a wrong number is reported before anything is written
        task = _task(recipe.task, self.data, recipe.patch)  # so are missing data
        self.recipe = recipe = recipe.with_data(task.digest)
        parts = {"train": task.train, "validation": task.validation, "test": task.test}
        self._about = {"about": task.about, **{name: len(part) for name, part in parts.items()}}
        self._content = {"recipe": recipe.model_dump(mode="json", exclude={"runs"})}
        check_owner(self.root, self._content)
        self.shards.sweep(SWEEP_AGE)
        self.groups = open_groups(recipe, self.runs, self.shards.names())

    @property
    def missing(self) -> int:
        """Runs that are still to be trained."""
        return sum(len(group.runs) for group in self.groups)

    def run(
        self, executor: Executor, watch: Callable[[Iterator[Any]], Iterator[Any]] = iter
    ) -> list[Failed[GroupJob]]:
        """Train all open groups; what failed is returned, what was trained is committed.

        Args:
            executor: Where the jobs run.
            watch: Wraps the outcomes as they come, for a progress bar.
        """
        claim(self.root, self._content, data=self._about)
        jobs = [
            GroupJob(self.recipe, group, self.shards.url, self.data, self.device)
            for group in self.groups
        ]
        failures: list[Failed[GroupJob]] = []
        log = _Log(self.root, executor.slots)
        try:
            for outcome in watch(executor.run(train_job, jobs)):
                if isinstance(outcome, Failed):
                    failures.append(outcome)
                else:
                    log.add(outcome)
        finally:
            log.write()
        return failures


class _Log:
    """How long a session of a build took: a small file beside the shards for each."""

    def __init__(self, root: ShardFolder, slots: int) -> None:
        self._folder = ShardFolder(logs_url(root.url))
        self._start, self._slots = time.time(), slots
        self._runs, self._compiled, self._busy = 0, 0, 0.0

    def add(self, outcome: Done[GroupJob, Trained]) -> None:
        self._runs += outcome.result.runs
        self._compiled += outcome.result.runs * outcome.result.compiled
        self._busy += outcome.seconds

    def write(self) -> None:
        if not self._runs:
            return
        described = {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._start)),
            "wall_seconds": round(time.time() - self._start, 1),
            "worker_seconds": round(self._busy, 1),
            "workers": self._slots,
            "runs": self._runs,
            "compiled_runs": self._compiled,
        }
        self._folder.write_once(f"{uuid.uuid4().hex}.json", json.dumps(described).encode())
