"""Fit a neural model to examples, resumable: the same care for every model."""

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from math import cos, pi, prod
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32, Float64
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.predictor import Step, Watch
from transformer_nfn.jobs import one_thread
from transformer_nfn.models import WeightModel, load_model, save_model
from transformer_nfn.space import NetBatch, balance
from transformer_nfn.zoo import ask

_SCALE = "scale.safetensors"
#: Seconds between two writes of a fit's state.
STATE_EVERY = 30.0
#: Networks that are read at once where no gradient is wanted.
PREDICT_BATCH = 64


class Fitting(BaseModel):
    """How a model is trained; as it stands, by the paper's text (appendix "General details").

    Attributes:
        batch: Networks in a step.
        lr: The highest learning rate.
        epochs: How many, whatever is seen on validation.
        warmup: Epochs in which the rate rises to its highest.
        schedule: What the rate does then: it stays, or falls to 0 along a cosine.
        weight_decay: Of Adam, decoupled from the gradient.
        keep: The module of the epoch with the highest τ on validation, of the last epoch, or the
            mean of the parameters over the last quarter of the epochs.
        scaled: Divide each tensor of the networks by its usual size in training, one number for
            each tensor: it commutes with the group.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    batch: int = Field(default=16, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    epochs: int = Field(default=50, ge=1)
    warmup: int = Field(default=10, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"
    weight_decay: float = Field(default=0.0, ge=0)
    keep: Literal["best", "last", "average"] = "best"
    scaled: bool = False

    def rate(self, position: float) -> float:
        """The learning rate so many epochs after the start."""
        if position <= self.warmup:
            return self.lr * position / self.warmup if self.warmup else self.lr
        if self.schedule == "constant":
            return self.lr
        progress = (position - self.warmup) / (self.epochs - self.warmup)
        return self.lr * (1 + cos(pi * progress)) / 2

    @property
    def averaged_from(self) -> int:
        """The first epoch, from 1, whose parameters enter the mean."""
        return self.epochs - max(1, self.epochs // 4) + 1


@runtime_checkable
class _InTwoSteps(Protocol):
    """A model whose first step does not depend on its parameters."""

    def inputs(self, net: NetBatch) -> Tensor:
        """A row of numbers for each network."""

    def read(self, inputs: Tensor) -> Tensor:
        """A logit for each row."""


@runtime_checkable
class _Asking(Protocol):
    """A model of what networks answer."""

    def sequences(self) -> Tensor:
        """What it sends through each network."""

    def read(self, answers: Tensor) -> Tensor:
        """A logit for each network, from its logits."""


class NeuralPredictor:
    """A module that reads networks, trained by binary cross entropy against their accuracy.

    An interrupted fit goes on from its last state, and comes out as if it had never been
    interrupted.

    Args:
        make: Makes the module for networks of the sizes of an example batch.
        fitting: How to train.
        seed: Of the order of examples.
        balanced: Move every head to its balanced form first.
        device: Where to compute.
    """

    def __init__(
        self,
        make: Callable[[NetBatch], WeightModel],
        *,
        fitting: Fitting | None = None,
        seed: int = 0,
        balanced: bool = False,
        device: str = "cpu",
    ) -> None:
        self._make, self.fitting, self._seed = make, fitting or Fitting(), seed
        self._balanced, self._device = balanced, device
        self._module: WeightModel | None = None
        self._scale: Tensor | None = None
        #: The epoch whose module was kept, from 1, of a mean the last; CPU seconds before the fit
        #: was interrupted.
        self.epoch, self.earlier_seconds = 0, 0.0

    @property
    def module(self) -> WeightModel:
        """The fitted module."""
        if self._module is None:
            raise BenchError("this predictor is not fitted yet: call fit or load first")
        return self._module

    @property
    def parameter_count(self) -> int | None:
        """Numbers that the module learned; None before it did."""
        return None if self._module is None else self._module.parameter_count

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Train, and keep the module that the fitting asks for."""
        self._scale = usual_scale(train) if self.fitting.scaled else None
        module = self._make(train.nets(slice(0, 1))).to(self._device)
        with one_thread(self._device):
            self._fit(module, train, validation, state, watch)

    def _fit(
        self,
        module: WeightModel,
        train: Examples,
        validation: Examples,
        state: Path | None,
        watch: Watch | None,
    ) -> None:
        fitting = self.fitting
        read, read_validation = self._reader(module, train), self._reader(module, validation)
        accuracy = torch.tensor(train.target, dtype=torch.float32, device=self._device)
        optimizer = torch.optim.AdamW(
            module.parameters(), lr=fitting.lr, weight_decay=fitting.weight_decay, fused=True
        )
        progress = _Progress(module, optimizer, fitting, state)
        if progress.epoch == 0:
            begun = time.process_time()
            module.prepare(self._nets(self._prepared(train)), accuracy, fitting.lr)
            progress.seconds += time.process_time() - begun
        steps = -(-len(train) // fitting.batch)
        while progress.epoch < fitting.epochs:
            begun = time.process_time()
            module.train()
            order = _order(len(train), self._seed, progress.epoch)
            for number, rows in enumerate(torch.split(order, fitting.batch)):
                done = progress.epoch * steps + number + 1
                optimizer.param_groups[0]["lr"] = fitting.rate(done / steps)
                loss = F.binary_cross_entropy_with_logits(read(rows), accuracy[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            tau = kendall_tau(
                _sigmoid(_all_rows(module, read_validation, len(validation))), validation.target
            )
            progress.epoch_ended(tau, time.process_time() - begun)
            if watch is not None:
                watch(Step(progress.epoch, fitting.epochs, tau))
        module.load_state_dict(progress.kept)
        self._module, self.epoch = module, progress.kept_epoch
        self.earlier_seconds = progress.earlier_seconds

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The predicted accuracy of each network."""
        with one_thread(self._device):
            logits = _all_rows(self.module, self._reader(self.module, examples), len(examples))
        return _sigmoid(logits)

    def _reader(self, module: WeightModel, examples: Examples) -> Callable[[Tensor], Tensor]:
        """Logits of some rows; what does not depend on parameters is computed once."""
        examples = self._prepared(examples)
        if isinstance(module, _InTwoSteps):
            whole = [module.inputs(examples.nets(rows)) for rows in _slices(len(examples))]
            inputs = torch.cat(whole).to(self._device)
            return lambda rows: module.read(inputs[rows])
        if isinstance(module, _Asking):
            weights = examples.weights.to(self._device)
            return lambda rows: module.read(ask(examples.shape, weights[rows], module.sequences()))
        nets = self._nets(examples)
        return lambda rows: module(nets(rows))

    def _prepared(self, examples: Examples) -> Examples:
        """The networks as the module reads them."""
        if self._balanced:
            examples = examples.with_blocks(balance(examples.nets().blocks).weights)
        if self._scale is not None:
            examples = replace(examples, weights=examples.weights * self._scale)
        return examples

    def _nets(self, examples: Examples) -> Callable[[Any], NetBatch]:
        """Networks by their rows, where they are computed with."""
        if self._device != "cpu":
            examples = replace(examples, weights=examples.weights.to(self._device))
        return examples.nets

    def save(self, folder: Path) -> None:
        """Write the module as one safetensors file, and the scale of its inputs as another."""
        save_model(self.module, folder / "model.safetensors")
        if self._scale is not None:
            (folder / _SCALE).write_bytes(save({"scale": self._scale}))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            BenchError: If the scale is missing or damaged.
        """
        self._module = load_model(folder / "model.safetensors").to(self._device)
        self._scale = _read_scale(folder / _SCALE) if self.fitting.scaled else None


class _Progress:
    """How far a fit is: all that it needs to go on, in memory and, if wanted, in a file."""

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        fitting: Fitting,
        folder: Path | None,
    ) -> None:
        self._module, self._optimizer, self._fitting = module, optimizer, fitting
        self._path = None if folder is None else folder / "fit.safetensors"
        self.epoch, self.kept_epoch, self.best_tau = 0, 0, -2.0
        self.seconds = self.earlier_seconds = 0.0
        self.kept: dict[str, Tensor] = {}
        self._written = time.monotonic()
        if self._path is not None and self._path.is_file():
            self._read(self._path)

    def epoch_ended(self, tau: float, seconds: float) -> None:
        self.epoch += 1
        self.seconds += seconds
        self._keep(tau)
        if self._path is not None and time.monotonic() - self._written > STATE_EVERY:
            self._write(self._path)
            self._written = time.monotonic()

    def _keep(self, tau: float) -> None:
        fitting, state = self._fitting, self._module.state_dict()
        if fitting.keep == "average" and self.epoch >= fitting.averaged_from:
            count = self.epoch - fitting.averaged_from + 1
            for name, now in state.items() if count > 1 else ():
                # Integers, such as how often something was counted, have no mean.
                kept = self.kept[name].to(now.device)  # a state that was read is on the CPU
                state[name] = kept + (now - kept) / count if now.is_floating_point() else now
        elif fitting.keep == "average" or (fitting.keep == "best" and tau <= self.best_tau):
            return
        self.best_tau, self.kept_epoch, self.kept = tau, self.epoch, deepcopy(state)

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        tensors = {f"now.{name}": t for name, t in self._module.state_dict().items()}
        tensors |= {f"kept.{name}": t for name, t in self.kept.items()}
        for number, moments in self._optimizer.state_dict()["state"].items():
            tensors |= {f"adam.{number}.{name}": t for name, t in moments.items()}
        figures = {
            "epoch": self.epoch,
            "kept_epoch": self.kept_epoch,
            "best_tau": self.best_tau,
            "seconds": self.seconds,
        }
        temporary = path.with_suffix(".writing")
        alone = {n: t.contiguous() for n, t in tensors.items()}
        temporary.write_bytes(save(alone, {"figures": json.dumps(figures)}))
        temporary.replace(path)

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                figures = json.loads(file.metadata()["figures"])
            self._module.load_state_dict(_below(tensors, "now."))
            self.kept = _below(tensors, "kept.")
            moments: dict[int, dict[str, Tensor]] = {}
            for name, tensor in _below(tensors, "adam.").items():
                number, _, part = name.partition(".")
                moments.setdefault(int(number), {})[part] = tensor
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
            self.epoch, self.kept_epoch = int(figures["epoch"]), int(figures["kept_epoch"])
            self.best_tau = float(figures["best_tau"])
            self.seconds = self.earlier_seconds = float(figures["seconds"])
        except (
            SafetensorError,
            OSError,
            KeyError,
            ValueError,
            RuntimeError,
            TypeError,
            AttributeError,
        ) as error:
            raise BenchError(f"{path} is not the state of this fit: delete it ({error})") from error


def usual_scale(examples: Examples) -> Float32[Tensor, " weights"]:
    """One over the usual size of each tensor, for each number of a row.

    The size is the median over networks of the root mean square: of networks that diverged,
    some are a million times as large as the others.
    """
    scale = torch.ones(examples.shape.size)
    for offset, dims in examples.shape.stored.values():
        place = slice(offset, offset + prod(dims))
        sizes = examples.weights[:, place].double().square().mean(1).sqrt()
        usual = sizes.median().item()
        scale[place] = 1 / usual if usual > 0 else 1.0
    return scale


def _read_scale(path: Path) -> Float32[Tensor, " weights"]:
    try:
        scale = load_file(path)["scale"]
    except (OSError, SafetensorError, KeyError) as error:
        raise BenchError(f"{path} cannot be read: {error}") from error
    if scale.dim() != 1 or scale.dtype != torch.float32 or not scale.isfinite().all():
        raise BenchError(f"{path} does not hold one row of finite float32")
    return scale


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def _order(count: int, seed: int, epoch: int) -> Tensor:
    # From seed and epoch alone, so that a resumed fit sees the same order.
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(count, generator=generator)


def _slices(count: int) -> Iterator[slice]:
    for first in range(0, count, PREDICT_BATCH):
        yield slice(first, min(count, first + PREDICT_BATCH))


@torch.no_grad()
def _all_rows(module: nn.Module, read: Callable[[Any], Tensor], count: int) -> Tensor:
    module.eval()
    return torch.cat([read(rows) for rows in _slices(count)])


def _sigmoid(logits: Tensor) -> Float64[np.ndarray, " n"]:
    # In float64: float32 would round different large logits to the same 1.
    predicted: np.ndarray = logits.double().sigmoid().cpu().numpy()
    return predicted
