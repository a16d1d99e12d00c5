from pathlib import Path

import numpy as np
import pytest

from tests.bench.small import RESIDUAL, WORD_VECTORS, small_examples, three_parts
from transformer_nfn.bench import kendall_tau
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models import agreement
from transformer_nfn.bench.models.agreement import AgreementPredictor, AgreementSettings, _parts
from transformer_nfn.bench.models.predictor import Predictor, Step
from transformer_nfn.bench.protocol.computing import moved_by_group
from transformer_nfn.group import conditioned
from transformer_nfn.models import AgreementProbes
from transformer_nfn.zoo.nets import NetShape

pytest.importorskip("lightgbm")

SMALL = AgreementSettings(parts=2, probes=9, steps=4)
BOTH = SMALL.model_copy(update={"beside": ("invariants",)})


@pytest.fixture(autouse=True)
def many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks, so more than four together; not all of a side, nor a divisor of it."""
    monkeypatch.setattr(agreement, "_AT_ONCE", 25)


def predictor(settings: AgreementSettings = SMALL) -> AgreementPredictor:
    return AgreementPredictor(settings, seed=1, tokens=4)


@pytest.mark.parametrize("settings", [SMALL, BOTH])
@pytest.mark.parametrize("shape", [RESIDUAL, WORD_VECTORS])
def test_it_learns_and_comes_back_from_its_files(
    shape: NetShape, settings: AgreementSettings, tmp_path: Path
) -> None:
    train, validation, test = three_parts(small_examples(60, shape=shape))
    m, steps = predictor(settings), list[Step]()
    assert isinstance(m, Predictor)
    m.fit(train, validation, watch=steps.append)
    assert [(step.done, step.total) for step in steps] == [(1, 2), (2, 2)]
    predicted = m.predict(test)
    # The scale of a net's weights, which its accuracy follows here, shows in how sure it is.
    assert kendall_tau(predicted, test.accuracy) > 0.4
    m.save(tmp_path)
    again = predictor(settings)
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict(test), predicted)
    with pytest.raises(BenchError, match=r"trees\.safetensors"):
        predictor(BOTH if settings is SMALL else SMALL).load(tmp_path)


def test_the_group_does_not_change_predictions() -> None:
    train, validation, test = three_parts(small_examples(60))
    m = predictor(BOTH)
    m.fit(train, validation)
    moved = m.predict(moved_by_group(test, conditioned(10.0), seed=3))
    assert kendall_tau(moved, m.predict(test)) > 0.97  # rounding to float32 moves trees a little


def test_no_network_is_tested_by_probes_that_it_helped_to_make(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train, validation, _ = three_parts(small_examples(60))
    references: dict[int, set[bytes]] = {}
    tests: list[tuple[int, set[bytes]]] = []
    make, responses = AgreementPredictor._make, AgreementPredictor._responses

    def making(self, number, examples, rows, kept):
        probes = make(self, number, examples, rows, kept)
        references[id(probes)] = {w.numpy().tobytes() for w in examples.take(rows).weights}
        return probes

    def reading(self, probes: AgreementProbes, examples):
        tests.append((id(probes), {w.numpy().tobytes() for w in examples.weights}))
        return responses(self, probes, examples)

    monkeypatch.setattr(AgreementPredictor, "_make", making)
    monkeypatch.setattr(AgreementPredictor, "_responses", reading)
    m = predictor()
    m.fit(train, validation)
    assert len(references) == 2
    assert all(references.values())
    assert all(not references[probes] & tested for probes, tested in tests)
    seen = set().union(*(tested for _, tested in tests))
    assert {w.numpy().tobytes() for w in train.weights} <= seen


def test_all_rows_of_a_run_are_in_one_fold() -> None:
    runs = np.repeat(np.arange(100, 131), 3)
    part = _parts(runs, 3, seed=0)
    assert sorted(np.bincount(part) // 3) == [10, 10, 11]
    assert all(len(set(part[runs == run])) == 1 for run in runs)


def test_probes_are_made_once_and_their_seconds_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, validation, test = three_parts(small_examples(40))
    first, second = predictor(), predictor(BOTH)
    first.fit(train, validation, state=tmp_path / "fits" / "one")
    assert first.earlier_seconds == 0
    kept = list((tmp_path / "fits" / "probes").iterdir())
    assert len(kept) == 2

    def never(*_: object, **__: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(AgreementProbes, "agree", never)
    second.fit(train, validation, state=tmp_path / "fits" / "two")
    assert second.earlier_seconds > 0
    again = predictor()
    again.fit(train, validation, state=tmp_path / "fits" / "one")
    np.testing.assert_array_equal(again.predict(test), first.predict(test))
    with pytest.raises(AssertionError, match="made again"):  # other references, other probes
        predictor().fit(train.take(np.arange(60)), validation, state=tmp_path / "fits" / "three")


def test_before_the_fit_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="not fitted"):
        predictor().predict(small_examples(2))
    with pytest.raises(BenchError, match="not fitted"):
        predictor().save(tmp_path)
