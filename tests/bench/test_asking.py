"""Models that ask networks are fitted and tested through the compiled passes, where they fit."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.bench.small import COMPILED, small_examples, three_parts
from tests.zoo.test_asking import refuse_torch
from tests.zoo.test_compiled import compiler
from transformer_nfn.bench.models import queried
from transformer_nfn.bench.models.predictor import Predictor
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.zoo.tasks import Part, Task, patches

__all__ = ["compiler"]
SHORT: dict[str, dict[str, object]] = {
    "probes": {"fitting": {**MODELS["probes"].settings["fitting"], "epochs": 2, "warmup": 1}},
    "agreement": {"parts": 2, "probes": 9, "steps": 4},
    "consensus": {},
}


def task(*_: object, **__: object) -> Task:
    pixels = torch.randn(1_000, 4, 4, generator=torch.Generator().manual_seed(3))
    part = Part(patches(pixels, 2), torch.zeros(1_000, dtype=torch.int64), pixels=pixels)
    return Task("made-up", COMPILED.classes, part, part, part, 2)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize("model", SHORT)
def test_answers_are_those_of_compiled_code(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queried, "load_task", task)
    make: Callable[..., Predictor] = MODELS[model].make
    predictor = make(seed=0, tokens=4, device="cpu", **MODELS[model].settings | SHORT[model])
    train, validation, test = three_parts(small_examples(40, shape=COMPILED))
    with monkeypatch.context() as patch:
        refuse_torch(patch)
        patch.setattr("transformer_nfn.models.probes.apply_net", lambda *_: pytest.fail("in torch"))
        predictor.fit(train, validation)
        predicted = predictor.predict(test)
    monkeypatch.setattr("transformer_nfn.zoo.asking.find_library", lambda *_: None)
    in_torch = predictor.predict(test)
    assert np.ptp(predicted) > 0
    np.testing.assert_allclose(in_torch, predicted, atol=2e-3)
