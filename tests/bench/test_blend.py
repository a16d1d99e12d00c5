from pathlib import Path

import numpy as np
import pytest

from tests.bench.small import small_examples
from transformer_nfn.bench import kendall_tau
from transformer_nfn.bench.blend import BlendPredictor
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.examples import Examples


class Says:
    """Accuracy and noise; it learns nothing."""

    parameter_count = 3

    def __init__(self, noise: float, seed: int) -> None:
        self.noise, self.seed, self.fitted = noise, seed, False

    def fit(self, train: Examples, validation: Examples, **_: object) -> None:
        self.fitted = True

    def predict(self, examples: Examples) -> np.ndarray:
        noise = np.random.default_rng(self.seed).normal(size=len(examples)) * self.noise
        return np.clip(examples.accuracy + noise, 0.01, 0.99)

    def save(self, folder: Path) -> None:
        (folder / "noise").write_text(str(self.noise))

    def load(self, folder: Path) -> None:
        self.noise = float((folder / "noise").read_text())


def test_two_that_err_differently_are_better_together() -> None:
    examples = small_examples(60)
    blend = BlendPredictor([Says(0.2, 1), Says(0.2, 2)])
    blend.fit(examples, examples)
    alone = [kendall_tau(Says(0.2, seed).predict(examples), examples.accuracy) for seed in (1, 2)]
    assert kendall_tau(blend.predict(examples), examples.accuracy) > max(alone)
    assert blend.parameter_count == 3


def test_one_that_knows_nothing_gets_no_weight() -> None:
    examples = small_examples(60)
    blend = BlendPredictor([Says(0.001, 1), Says(50.0, 2)])
    blend.fit(examples, examples)
    assert blend.weight > 0.8


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    examples = small_examples(60)
    blend = BlendPredictor([Says(0.2, 1), Says(0.1, 2)])
    blend.fit(examples, examples)
    blend.save(tmp_path)
    again = BlendPredictor([Says(9.0, 1), Says(9.0, 2)])
    again.load(tmp_path)
    assert np.array_equal(again.predict(examples), blend.predict(examples))
    (tmp_path / "blend.json").write_text('{"weight": 7}')
    with pytest.raises(BenchError, match="from 0 to 1"):
        again.load(tmp_path)
