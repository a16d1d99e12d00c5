"""What a recipe costs: runs, groups, rows, bytes, and time from a short calibration."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from transformer_nfn.jobs import one_thread
from transformer_nfn.zoo.groups import kind_of, open_groups, runs_by_kind
from transformer_nfn.zoo.recipe import Recipe
from transformer_nfn.zoo.tasks import Task
from transformer_nfn.zoo.training.trainer import GroupTrainer


class Plan(NamedTuple):
    """The size of a zoo."""

    recipe: str
    runs: int
    groups: int
    rows: int
    bytes: int
    steps: int  # of single nets, in all
    evaluated: int  # examples answered by single nets, in all


class Speed(NamedTuple):
    """What one worker does in a second, measured here."""

    steps: float
    evaluated: float

    def seconds(self, plan: Plan) -> float:
        """How long one worker needs for a plan."""
        return plan.steps / self.steps + plan.evaluated / self.evaluated


def make_plan(recipe: Recipe, task: Task, count: int) -> Plan:
    """Count what the first `count` runs of a recipe take."""
    runs, training = recipe.first_runs(count), recipe.training
    examples = training.train_examples or len(task.train)
    steps = sum(
        training.epochs * (round(run.hyperparameters.train_fraction * examples) // training.batch)
        for run in runs
    )
    validation = training.validation_examples or len(task.validation)
    test = training.test_examples or len(task.test)
    rows = len(recipe.checkpoints)
    return Plan(
        recipe.name,
        count,
        len(open_groups(recipe, count, ())),
        count * rows,
        count * rows * (4 * recipe.shape.size + 500),  # and about 500 bytes of other columns
        steps,
        count * (training.epochs * validation + rows * test),
    )


def calibrate(recipe: Recipe, task: Task, device: str = "cpu", seconds: float = 4.0) -> Speed:
    """Train the recipe's first group for a few seconds, on one thread as a worker does."""
    with one_thread(device):
        size = recipe.lockstep if device == "cpu" else recipe.group
        kind = kind_of(recipe.all_runs[0])
        runs = [recipe.all_runs[n] for n in runs_by_kind(recipe.all_runs)[kind][:size]]
        trainer = GroupTrainer(recipe.shape, task, recipe.training, runs, device=device)
        order, b = trainer.orders.epoch(), recipe.training.batch

        def step(number: int) -> None:
            index = order[:, : trainer.steps * b].roll(-number * b, 1)[:, :b]
            trainer.step(index, trainer.rates(0, 0))
            if device != "cpu":
                torch.cuda.synchronize()

        # A core's own time: what else the machine does now is no part of the cost.
        clock = time.process_time if device == "cpu" else time.perf_counter
        steps = len(runs) * _rate(step, seconds * 0.75, clock)
        part = task.test.first(min(len(task.test), 256))
        evaluations = _rate(lambda _: trainer.evaluate.accuracy(part), seconds * 0.25, clock)
        return Speed(steps, len(runs) * len(part) * evaluations)


def _rate(call: Callable[[int], object], seconds: float, clock: Callable[[], float]) -> float:
    """Calls a second."""
    call(0)  # buffers are made in the first
    done, start = 0, clock()
    while clock() - start < seconds or done == 0:
        done += 1
        call(done)
    return done / (clock() - start)
