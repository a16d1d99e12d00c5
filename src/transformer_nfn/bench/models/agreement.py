"""A predictor on agreement probes: none is tested by probes that it helped to make; two readers."""

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
from transformer_nfn.bench.models.regression.readers import Readers
from transformer_nfn.jobs import one_thread
from transformer_nfn.models import AgreementConfig, AgreementProbes, load_model, save_model
from transformer_nfn.zoo import ask

#: Networks above this quantile of accuracy are the reference networks; so many of the best of them
#: give the consensus.
_GOOD, _BEST = 0.6, 100
_AT_ONCE = 4  # networks whose answers are in memory together


class AgreementSettings(BaseModel):
    """How networks are probed.

    Attributes:
        parts: Parts of the training runs; each is tested by probes made without it.
        probes: Learned for each part.
        steps: Of `AgreementProbes.agree`.
        beside: Names in `FEATURES` that are read beside the responses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    parts: int = Field(default=3, ge=2)
    probes: int = Field(default=200, ge=1)
    steps: int = Field(default=600, ge=0)
    beside: tuple[str, ...] = ()


class AgreementPredictor:
    """Responses to agreement probes, read by boosted trees and a kernel; the mean of both logits.

    A network that helped to make probes agrees with their consensus more than its accuracy says. So
    the training runs are dealt into parts: the reference networks of a part's probes are good
    networks of all other parts, and its own networks are tested by them. New networks are tested by
    the probes of all parts; what is read of them is the mean.

    Args:
        settings: How networks are probed.
        seed: Of all that is drawn.
        tokens: Of a network's input.
        device: Where probes are computed.
    """

    def __init__(
        self, settings: AgreementSettings, *, seed: int, tokens: int, device: str = "cpu"
    ) -> None:
        self.settings, self._seed, self._tokens, self._device = settings, seed, tokens, device
        self._probes: list[AgreementProbes] = []
        self._readers: Readers | None = None
        #: CPU seconds of probes that were made by an earlier fit.
        self.earlier_seconds = 0.0

    @property
    def parameter_count(self) -> int | None:
        """Numbers in the probes; trees and kernel are not counted."""
        return sum(probes.parameter_count for probes in self._probes) or None

    def fit(
        self,
        train: Examples,
        validation: Examples,
        *,
        state: Path | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Make the probes, test all networks, and fit both readers to the responses.

        Probes are kept beside `state`: an interrupted fit goes on with those that are there, and
        models with the same probes share them. Their CPU seconds count in each.
        """
        part = _parts(train.column("run"), self.settings.parts, self._seed)
        good = train.accuracy >= np.quantile(train.accuracy, _GOOD)
        self._probes, self.earlier_seconds = [], 0.0
        kept = None if state is None else state.parent / "probes"
        with one_thread(self._device):
            for number in range(self.settings.parts):
                references = np.flatnonzero(good & (part != number))
                if not len(references):
                    references = np.flatnonzero(good)  # of very few runs
                probes = self._make(number, train, references, kept)
                self._probes.append(probes)
                if watch is not None:
                    tau = kendall_tau(self._agreement(probes, validation), validation.target)
                    watch(Step(number + 1, self.settings.parts, tau))
            order = np.argsort(part, kind="stable")
            responses = [
                self._responses(probes, train.take(part == number))
                for number, probes in enumerate(self._probes)
            ]
            rows = self._beside(np.concatenate(responses)[np.argsort(order)], train)
            held_out = self._rows(validation)
        self._readers = Readers.fitted(rows, train.target, held_out, validation.target, self._seed)

    def predict(self, examples: Examples) -> Float64[np.ndarray, " n"]:
        """The accuracy of each network."""
        if self._readers is None:
            raise BenchError("this predictor is not fitted yet: call fit or load first")
        with one_thread(self._device):
            rows = self._rows(examples)
        return self._readers.predict(rows)

    def save(self, folder: Path) -> None:
        """Write probes, trees and kernel, each in a file of its own."""
        if self._readers is None:
            raise BenchError("this predictor is not fitted yet: nothing to save")
        for number, probes in enumerate(self._probes):
            save_model(probes, folder / f"probes-{number}.safetensors")
        self._readers.save(folder, {"settings": self.settings.model_dump_json()})

    def load(self, folder: Path) -> None:
        """Read what `save` wrote.

        Raises:
            BenchError: If a file is damaged or of other settings.
        """
        loaded = []
        for number in range(self.settings.parts):
            model = load_model(folder / f"probes-{number}.safetensors")
            if not isinstance(model, AgreementProbes):
                raise BenchError(f"{folder}: probes of part {number} are a {type(model).__name__}")
            loaded.append(model.to(self._device))
        self._readers = Readers.load(folder, {"settings": self.settings.model_dump_json()})
        self._probes = loaded

    def _make(
        self, number: int, train: Examples, references: Int64[np.ndarray, " m"], kept: Path | None
    ) -> AgreementProbes:
        """The probes of one part: read if they were made before, else made."""
        config = AgreementConfig.of(
            train.nets(slice(0, 1)),
            tokens=self._tokens,
            probes=self.settings.probes,
            seed=self._seed * 1000 + number,
        )
        chosen = train.take(references)
        path = None
        if kept is not None:
            spelled = json.dumps([config.model_dump(), self.settings.steps])
            digest = hashlib.sha256(spelled.encode())
            digest.update(chosen.weights.contiguous().numpy().tobytes())
            path = kept / f"{digest.hexdigest()[:24]}.safetensors"
            if path.is_file():
                model = load_model(path)
                assert isinstance(model, AgreementProbes)
                self.earlier_seconds += model.seconds.item()
                return model.to(self._device)
        begun = time.process_time()
        probes = AgreementProbes(config).to(self._device)
        weights = chosen.weights.to(self._device)

        def answers(rows: Tensor, inputs: Tensor) -> Tensor:
            return ask(chosen.shape, weights[rows], inputs)

        probes.agree(answers, torch.arange(len(chosen)), self.settings.steps)
        best = np.argsort(-chosen.accuracy, kind="stable")[:_BEST]
        probes.set_consensus(answers, torch.from_numpy(best))
        probes.seconds.fill_(time.process_time() - begun)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_model(probes, path)
        return probes

    def _rows(self, examples: Examples) -> Float32[np.ndarray, "n f"]:
        """What is read of networks that were no reference networks."""
        responses = [self._responses(probes, examples) for probes in self._probes]
        mean: np.ndarray = np.stack(responses).mean(axis=0)
        return self._beside(mean, examples)

    def _beside(
        self, responses: Float32[np.ndarray, "n s"], examples: Examples
    ) -> Float32[np.ndarray, "n f"]:
        rows = np.concatenate(
            [responses, *(FEATURES[n](examples) for n in self.settings.beside)], 1
        )
        if not np.isfinite(rows).all():
            raise BenchError("answers of a network are not finite: leave diverged runs out")
        return rows

    def _responses(self, probes: AgreementProbes, examples: Examples) -> Float32[np.ndarray, "n s"]:
        responses = self._some_at_a_time(probes, probes.compare, examples).to(torch.float32)
        found: np.ndarray = responses.numpy()
        return found

    def _agreement(self, probes: AgreementProbes, examples: Examples) -> Float64[np.ndarray, " n"]:
        read = self._some_at_a_time(probes, probes.read, examples)
        agreement: np.ndarray = read.double().numpy()
        return agreement

    @torch.no_grad()
    def _some_at_a_time(
        self, probes: AgreementProbes, read: Callable[[Tensor], Tensor], examples: Examples
    ) -> Float[Tensor, "n ..."]:
        weights, inputs = examples.weights.to(self._device), probes.sequences()
        parts = torch.split(weights, _AT_ONCE)
        return torch.cat([read(ask(examples.shape, some, inputs)).cpu() for some in parts])


def _parts(runs: np.ndarray, count: int, seed: int) -> Int64[np.ndarray, " n"]:
    """Which part each row belongs to: all rows of a run to the same."""
    different, place = np.unique(runs, return_inverse=True)
    dealt: np.ndarray = np.random.default_rng(seed).permutation(len(different))[place] % count
    return dealt
