"""Train a group of runs in lockstep: one batched step for all of them.

A run's start, order of data, crops and dropout come from generators of its own, so its result does
not depend on which runs are trained beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.optimizers import make_optimizer
from transformer_nfn.zoo.recipe import Training
from transformer_nfn.zoo.runs import Run, derived_seed
from transformer_nfn.zoo.tasks import Cropper, Task
from transformer_nfn.zoo.training.engines import make_engine
from transformer_nfn.zoo.training.evaluation import NOT_TESTED, Evaluation, Tested
from transformer_nfn.zoo.training.masks import Masks

FLOOR = 1e-5  # where the cosine ends


@dataclass(frozen=True)
class Checkpoint:
    """A run at the end of an epoch. A diverged one has neither weights nor accuracies."""

    name: str
    epoch: int
    status: str  # "ok" or "diverged"
    train_loss: float | None = None
    train_accuracy: float | None = None
    validation_accuracy: float | None = None
    tested: Tested = NOT_TESTED
    weights: Float[Tensor, " weights"] | None = None  # as NetShape.stored lays them out


def rate(base: float, position: float, unit: float, training: Training) -> float:
    """The learning rate `position` epochs after the start; it changes every `unit` epochs."""
    if position < training.warmup:
        return base * min(1.0, (position + unit) / training.warmup)
    progress = (position - training.warmup) / (training.epochs - training.warmup)
    return FLOOR + (base - FLOOR) * (1 + cos(pi * progress)) / 2


class Orders:
    """Which examples each net sees when; each from its own generator."""

    def __init__(self, runs: Sequence[Run], examples: int) -> None:
        counts = {round(r.hyperparameters.train_fraction * examples) for r in runs}
        if len(counts) != 1:
            raise ValueError("runs of one group have one train_fraction")
        (self.count,) = counts
        self._generators = [
            torch.Generator().manual_seed(derived_seed(run.seed, "order")) for run in runs
        ]
        # Each run has a part of the examples of its own.
        self._own = torch.stack(
            [torch.randperm(examples, generator=g)[: self.count] for g in self._generators]
        )

    def epoch(self) -> Int64[Tensor, "n m"]:
        """The order of the next epoch."""
        orders = torch.stack([torch.randperm(self.count, generator=g) for g in self._generators])
        return self._own.gather(1, orders)


class GroupTrainer:
    """Lockstep training of runs with one optimizer and one train fraction.

    Args:
        shape: The net.
        task: Its data; moved to `device` once.
        training: Epochs, batch, schedule, checkpoints.
        runs: The group.
        device: Where to train. Random numbers are drawn on the CPU, so they are the same anywhere.
        dtype: Of weights and data; float64 is for tests.
    """

    def __init__(
        self,
        shape: NetShape,
        task: Task,
        training: Training,
        runs: Sequence[Run],
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        h = [run.hyperparameters for run in runs]
        if len({one.optimizer for one in h}) != 1:
            raise ValueError("runs of one group have one optimizer")
        self.shape, self.training, self.runs = shape, training, runs

        def seeds(purpose: str) -> list[int]:
            return [derived_seed(run.seed, purpose) for run in runs]

        def column(values: Sequence[float]) -> Float[Tensor, "n 1"]:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        start = shape.start(seeds("start"), [one.init_std for one in h], dtype)
        self.weights = start.to(device)
        self.engine = make_engine(shape, self.weights, training.batch)
        self.optimizer = make_optimizer(h[0].optimizer, self.weights, column([r.l2 for r in h]))
        part = task.train.first(training.train_examples or len(task.train))
        self.inputs, self.labels = part.inputs.to(device, dtype), part.labels.to(device)
        self.lengths = None if part.lengths is None else part.lengths.to(device)
        self.orders = Orders(runs, len(part))
        self.steps = self.orders.count // training.batch
        if self.steps == 0:
            raise ValueError(f"{self.orders.count} examples are less than a batch")
        self.masks = None
        if any(one.dropout for one in h):
            self.masks = Masks(
                [one.dropout for one in h],
                seeds("dropout"),
                layers=2 * shape.blocks,
                rows=training.batch * shape.tokens,
                width=shape.D,
                like=self.weights,
            )
        self.crops = None
        if training.crop:
            assert part.pixels is not None  # the recipe has checked both
            assert task.patch is not None
            cropper = Cropper(part.pixels.to(device, dtype), task.patch, training.crop)
            self.crops = (cropper, [torch.Generator().manual_seed(s) for s in seeds("crop")])
        self.evaluate = Evaluation(shape, self.weights)
        self.validation = task.validation.first(
            training.validation_examples or len(task.validation)
        )
        self.test = task.test.first(training.test_examples or len(task.test))

    def rates(self, epoch: int, step: int) -> Float[Tensor, "n 1"]:
        """The learning rates of a step, counted from 0 within its epoch from 0."""
        by_step = self.training.schedule == "step"
        unit = 1 / self.steps if by_step else 1.0
        position = float(epoch) + (step * unit if by_step else 0.0)
        rates = [rate(run.hyperparameters.lr, position, unit, self.training) for run in self.runs]
        return torch.tensor(rates, dtype=torch.float64).to(self.weights).unsqueeze(1)

    def batch(
        self, index: Int64[Tensor, "n b"]
    ) -> tuple[Float[Tensor, "n b t p"], Int64[Tensor, "n b"], Int64[Tensor, "n b"] | None]:
        """Inputs, labels and lengths of a step."""
        index = index.to(self.labels.device)
        if self.crops is None:
            inputs = self.inputs.index_select(0, index.flatten())
            inputs = inputs.view(*index.shape, *inputs.shape[1:])
        else:
            cropper, generators = self.crops
            most, size = 2 * self.training.crop + 1, (index.shape[1], 2)
            shift = torch.stack([torch.randint(most, size, generator=g) for g in generators])
            inputs = cropper(index, shift.to(index.device))
        return inputs, self.labels[index], None if self.lengths is None else self.lengths[index]

    def step(
        self, index: Int64[Tensor, "n b"], rates: Float[Tensor, "n 1"]
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """One update of every net; the mean loss and the accuracy of each on its batch."""
        inputs, labels, lengths = self.batch(index)
        if self.masks is not None:
            self.masks.draw()
        found = self.engine.step(inputs, labels, lengths, self.masks)
        self.optimizer.step(found.gradient, rates)
        return found.loss / labels.shape[1], found.right / labels.shape[1]

    def epoch(self, number: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
        """One pass over each net's examples; the mean loss and accuracy of each."""
        order, b = self.orders.epoch(), self.training.batch
        losses, rights = self.weights.new_zeros(2, len(self.runs), dtype=torch.float64)
        for step in range(self.steps):
            index = order[:, step * b : (step + 1) * b]
            loss, right = self.step(index, self.rates(number, step))
            losses += loss
            rights += right
        return losses / self.steps, rights / self.steps

    def train(self) -> list[list[Checkpoint]]:
        """All epochs. For each run its checkpoints, the best on validation last."""
        alive = torch.ones(len(self.runs), dtype=torch.bool, device=self.weights.device)
        best = _Best(self.weights)
        kept: list[list[Checkpoint]] = [[] for _ in self.runs]
        for number in range(1, self.training.epochs + 1):
            loss, right = self.epoch(number - 1)
            alive &= self.weights.isfinite().all(dim=1) & loss.isfinite()
            # A diverged net stays in the group; as zeros it costs no slow arithmetic on NaN.
            self.weights[~alive] = 0.0
            validation = self.evaluate.accuracy(self.validation)
            best.update(number, alive, torch.stack([loss, right, validation]), self.weights)
            if number in self.training.checkpoints:
                figures = torch.stack([loss, right, validation])
                self._keep(kept, str(number), [number] * len(self.runs), alive, figures)
        self.weights.copy_(best.weights)
        self._keep(kept, "best", best.epoch.tolist(), best.epoch > 0, best.figures)
        return kept

    def _keep(
        self,
        kept: list[list[Checkpoint]],
        name: str,
        epochs: list[int],
        alive: Tensor,
        figures: Float[Tensor, "3 n"],
    ) -> None:
        tested = self.evaluate.test(self.test)
        rows = self.shape.to_stored(self.weights).cpu()
        for run, ok in enumerate(alive.tolist()):
            if ok:
                loss, right, validation = figures[:, run].tolist()
                one = Checkpoint(
                    name, epochs[run], "ok", loss, right, validation, tested[run], rows[run]
                )
            else:
                one = Checkpoint(name, epochs[run], "diverged")
            kept[run].append(one)


class _Best:
    """The epoch with the highest accuracy on validation so far; the earliest of equal ones."""

    def __init__(self, weights: Float[Tensor, "n weights"]) -> None:
        self.weights = torch.zeros_like(weights)
        self.figures = weights.new_full((3, len(weights)), -1.0, dtype=torch.float64)
        self.epoch = torch.zeros(len(weights), dtype=torch.int64, device=weights.device)

    def update(
        self,
        number: int,
        alive: Tensor,
        figures: Float[Tensor, "3 n"],
        weights: Float[Tensor, "n weights"],
    ) -> None:
        better = alive & (figures[2] > self.figures[2])
        self.weights[better] = weights[better]
        self.figures[:, better] = figures[:, better]
        self.epoch[better] = number
