"""Predictors that send real inputs of the task through a network: what a few of them tell."""

from math import isqrt
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.models.predictor import Watch
from transformer_nfn.jobs import one_thread
from transformer_nfn.zoo import DataError, Part, ask, load_task

_FILE = "inputs.safetensors"
#: So many of the best training networks give the consensus.
_BEST = 100
_AT_ONCE = 16  # networks whose answers are in memory together

#: What is made of the answers: mean confidence, agreement with the best training networks, or
#: accuracy by the labels.
Score = Literal["confidence", "consensus", "labels"]


def inputs_of(task: str, inputs: int, tokens: int) -> tuple[Part, Int64[Tensor, " s"]]:
    """The validation examples of a task, and which of them have all tokens.

    Args:
        task: Its name.
        inputs: Numbers of a patch, 0 of text.
        tokens: Of a network's input.

    Raises:
        DataError: If the task's data are missing.
    """
    part = load_task(task, patch=isqrt(inputs) or None).validation
    if part.lengths is None:
        return part, torch.arange(len(part))
    return part, torch.nonzero(part.lengths == tokens).squeeze(1)


class QueryPredictor:
    """A score of a network's answers to real inputs, which is the prediction: nothing is learned.

    The inputs are validation examples of the task, which no network of a zoo is trained or tested
    on, with all tokens: networks are run without padding.

    Args:
        score: What is made of the answers.
        inputs: How many inputs.
        seed: Of their choice.
    """

    def __init__(self, score: Score, inputs: int, seed: int) -> None:
        self.score, self._count, self._seed = score, inputs, seed
        self._inputs: Float[Tensor, "s t p"] | None = None
        self._labels: Int64[Tensor, " s"] = torch.empty(0, dtype=torch.int64)

    @property
    def parameter_count(self) -> int | None:
        """None: it has none."""
        return None

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Draw the inputs; for the consensus, ask the best training networks.

        Raises:
            BenchError: If the task's data are missing, or too few.
        """
        name = train.column("task")[0]
        try:
            part, whole = inputs_of(name, train.shape.owned.inputs, train.shape.tokens)
        except DataError as error:
            raise BenchError(f"{self.score} needs inputs of {name}: {error}") from error
        if len(whole) < self._count:
            raise BenchError(f"{name} has {len(whole)} such inputs, {self._count} are wanted")
        order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(self._seed))
        chosen = whole[order[: self._count]]
        self._inputs, self._labels = part.inputs[chosen], part.labels[chosen]
        if self.score == "consensus":
            best = train.take(np.argsort(-train.accuracy, kind="stable")[:_BEST])
            total = torch.zeros(self._count, train.shape.owned.classes, dtype=torch.float64)
            for answers in self._answers(best):
                total += answers.double().sum(0)
            self._labels = total.argmax(-1)

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The score of each network."""
        score = _confidence if self.score == "confidence" else self._right
        parts = [score(answers).double() for answers in self._answers(examples)]
        scores: np.ndarray = torch.cat(parts).numpy()
        return scores

    def _right(self, answers: Float[Tensor, "n s o"]) -> Float[Tensor, " n"]:
        return (answers.argmax(-1) == self._labels).double().mean(1)

    def _answers(self, examples: Examples) -> list[Float[Tensor, "n s o"]]:
        """Probabilities, some networks at a time."""
        if self._inputs is None:
            raise BenchError("this predictor is not fitted yet: call fit or load first")
        with torch.no_grad(), one_thread("cpu"):
            return [
                ask(examples.shape, some, self._inputs).softmax(-1)
                for some in torch.split(examples.weights, _AT_ONCE)
            ]

    def save(self, folder: Path) -> None:
        """Write the inputs and what they are compared with."""
        if self._inputs is None:
            raise BenchError("this predictor is not fitted yet: nothing to save")
        (folder / _FILE).write_bytes(save({"inputs": self._inputs, "labels": self._labels}))

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            BenchError: If the file is damaged.
        """
        try:
            tensors = load_file(folder / _FILE)
            self._inputs, self._labels = tensors["inputs"], tensors["labels"]
        except (OSError, SafetensorError, KeyError) as error:
            raise BenchError(f"{folder / _FILE} cannot be read: {error}") from error


def _confidence(answers: Float[Tensor, "n s o"]) -> Float[Tensor, " n"]:
    return answers.amax(-1).mean(1)
