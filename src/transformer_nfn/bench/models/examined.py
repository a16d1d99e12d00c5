"""A predictor that examines networks: exams nobody is judge and candidate of, and two readers."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.features.kinds import FEATURES
from transformer_nfn.bench.models.predictor import Step, Watch
from transformer_nfn.bench.models.readers import Readers
from transformer_nfn.jobs import one_thread
from transformer_nfn.models import Exam, ExamConfig, load_model, save_model
from transformer_nfn.space import NetBatch

#: Networks above this quantile of accuracy are the judges; so many of the best give the key.
_GOOD, _BEST = 0.6, 100
_AT_ONCE = 4  # networks whose answers are in memory together


class ExamSettings(BaseModel):
    """How networks are examined.

    Attributes:
        exams: How many exams there are, each with judges of its own.
        questions: In each exam.
        steps: Of `Exam.agree`.
        beside: Names in `FEATURES` that are read beside the exam sheets.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    exams: int = Field(default=3, ge=2)
    questions: int = Field(default=200, ge=1)
    steps: int = Field(default=600, ge=0)
    beside: tuple[str, ...] = ()


class ExamPredictor:
    """Exam sheets, read by boosted trees and by a kernel; the mean of both logits.

    A network that helped to make an exam does better in it than its accuracy says. So the training
    runs are dealt into as many parts as there are exams, the judges of each exam are good networks
    of all parts but one, and that one is examined. New networks take all exams; their sheet is the
    mean.

    Args:
        settings: How networks are examined.
        seed: Of all that is drawn.
        tokens: Of a network's input.
        device: Where questions are computed.
    """

    def __init__(
        self, settings: ExamSettings, *, seed: int, tokens: int, device: str = "cpu"
    ) -> None:
        self.settings, self._seed, self._tokens, self._device = settings, seed, tokens, device
        self._exams: list[Exam] = []
        self._readers: Readers | None = None
        #: CPU seconds of exams that were made by an earlier fit.
        self.earlier_seconds = 0.0

    @property
    def parameter_count(self) -> int | None:
        """Numbers in the questions; trees and kernel are not counted."""
        return sum(exam.parameter_count for exam in self._exams) or None

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Make the exams, examine all, and fit both readers to the sheets.

        Exams are kept beside `state`: an interrupted fit goes on with those that are there, and
        models that ask the same questions share them. Their CPU seconds count in each.
        """
        part = _parts(train.column("run"), self.settings.exams, self._seed)
        good = train.accuracy >= np.quantile(train.accuracy, _GOOD)
        self._exams, self.earlier_seconds = [], 0.0
        kept = None if state is None else state.parent / "exams"
        with one_thread(self._device):
            for number in range(self.settings.exams):
                judges = np.flatnonzero(good & (part != number))
                if not len(judges):
                    judges = np.flatnonzero(good)  # of very few runs
                exam = self._exam(number, train, judges, kept)
                self._exams.append(exam)
                if watch is not None:
                    tau = kendall_tau(self._grades(exam, validation), validation.accuracy)
                    watch(Step(number + 1, self.settings.exams, tau))
            order = np.argsort(part, kind="stable")
            sheets = [
                self._sheets(exam, train.take(part == number))
                for number, exam in enumerate(self._exams)
            ]
            rows = self._beside(np.concatenate(sheets)[np.argsort(order)], train)
            held_out = self._rows(validation)
        self._readers = Readers.fitted(
            rows, train.accuracy, held_out, validation.accuracy, self._seed
        )

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The accuracy of each network."""
        if self._readers is None:
            raise BenchError("this predictor is not fitted yet: call fit or load first")
        with one_thread(self._device):
            rows = self._rows(examples)
        return self._readers.predict(rows)

    def save(self, folder: Path) -> None:
        """Write exams, trees and kernel, each in a file of its own."""
        if self._readers is None:
            raise BenchError("this predictor is not fitted yet: nothing to save")
        for number, exam in enumerate(self._exams):
            save_model(exam, folder / f"exam-{number}.safetensors")
        self._readers.save(folder, {"settings": self.settings.model_dump_json()})

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            BenchError: If a file is damaged or of other settings.
        """
        exams = []
        for number in range(self.settings.exams):
            model = load_model(folder / f"exam-{number}.safetensors")
            if not isinstance(model, Exam):
                raise BenchError(f"{folder}: exam {number} is a {type(model).__name__}")
            exams.append(model.to(self._device))
        self._readers = Readers.load(folder, {"settings": self.settings.model_dump_json()})
        self._exams = exams

    def _exam(
        self, number: int, train: Examples, judges: Int64[np.ndarray, " m"], kept: Path | None
    ) -> Exam:
        """One exam: read if it was made before, else made."""
        config = ExamConfig.of(
            train.nets(slice(0, 1)),
            tokens=self._tokens,
            questions=self.settings.questions,
            seed=self._seed * 1000 + number,
        )
        chosen = train.take(judges)
        path = None
        if kept is not None:
            spelled = json.dumps([config.model_dump(), self.settings.steps])
            digest = hashlib.sha256(spelled.encode())
            digest.update(chosen.weights.contiguous().numpy().tobytes())
            path = kept / f"{digest.hexdigest()[:24]}.safetensors"
            if path.is_file():
                model = load_model(path)
                assert isinstance(model, Exam)
                self.earlier_seconds += model.seconds.item()
                return model.to(self._device)
        begun = time.process_time()
        exam = Exam(config).to(self._device)
        weights = chosen.weights.to(self._device)

        def nets(rows: Tensor) -> NetBatch:
            return chosen.shape.net_batch(weights[rows])

        exam.agree(nets, torch.arange(len(chosen)), self.settings.steps)
        exam.set_key(nets, torch.from_numpy(np.argsort(-chosen.accuracy, kind="stable")[:_BEST]))
        exam.seconds.fill_(time.process_time() - begun)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_model(exam, path)
        return exam

    def _rows(self, examples: Examples) -> Float32[np.ndarray, "n f"]:
        """What is read of networks that were no judges."""
        sheets = [self._sheets(exam, examples) for exam in self._exams]
        mean: np.ndarray = np.stack(sheets).mean(axis=0)
        return self._beside(mean, examples)

    def _beside(
        self, sheets: Float32[np.ndarray, "n s"], examples: Examples
    ) -> Float32[np.ndarray, "n f"]:
        rows = np.concatenate([sheets, *(FEATURES[n](examples) for n in self.settings.beside)], 1)
        if not np.isfinite(rows).all():
            raise BenchError("answers of a network are not finite: leave diverged runs out")
        return rows

    def _sheets(self, exam: Exam, examples: Examples) -> Float32[np.ndarray, "n s"]:
        sheets: np.ndarray = self._some_at_a_time(exam.sheet, examples).to(torch.float32).numpy()
        return sheets

    def _grades(self, exam: Exam, examples: Examples) -> Float64[np.ndarray, " n"]:
        grades: np.ndarray = self._some_at_a_time(exam, examples).double().numpy()
        return grades

    @torch.no_grad()
    def _some_at_a_time(
        self, examine: Callable[[NetBatch], Tensor], examples: Examples
    ) -> Float[Tensor, "n ..."]:
        weights = examples.weights.to(self._device)
        parts = [
            examine(examples.shape.net_batch(some)).cpu() for some in torch.split(weights, _AT_ONCE)
        ]
        return torch.cat(parts)


def _parts(runs: np.ndarray, count: int, seed: int) -> Int64[np.ndarray, " n"]:
    """Which part each row belongs to: all rows of a run to the same."""
    different, place = np.unique(runs, return_inverse=True)
    dealt: np.ndarray = np.random.default_rng(seed).permutation(len(different))[place] % count
    return dealt
