"""Predictors that show networks inputs of the task."""

import json

import numpy as np
import pytest
import torch

from tests.bench.conftest import write_zoo
from tests.bench.small import SHAPE, small_examples, three_parts
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models import queried
from transformer_nfn.bench.models.predictor import Predictor
from transformer_nfn.bench.models.queried import QueryPredictor
from transformer_nfn.bench.protocol import readable
from transformer_nfn.bench.protocol.experiments import default_models
from transformer_nfn.bench.protocol.readable import check_inputs, what_it_lacks
from transformer_nfn.space import apply_net
from transformer_nfn.zoo import DataError, Recipe, load_task
from transformer_nfn.zoo.format.schema import FORMAT
from transformer_nfn.zoo.tasks import Part, Task, patches

TRAIN, VALIDATION, TEST = three_parts(small_examples(60))


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    generator = torch.Generator().manual_seed(3)

    def part(count: int) -> Part:
        pixels = torch.randn(count, 4, 4, generator=generator)
        labels = torch.randint(SHAPE.classes, (count,), generator=generator)
        return Part(patches(pixels, 2), labels, pixels=pixels)

    made = Task("made-up", SHAPE.classes, part(20), part(50), part(30), 2)

    def load(name: str, *, patch: int | None) -> Task:
        assert (name, patch) == ("made-up", 2)
        return made

    monkeypatch.setattr(queried, "load_task", load)
    return made


def test_labels_give_the_accuracy_on_validation_inputs(task, tmp_path):
    predictor = QueryPredictor("labels", 50, seed=0)
    assert isinstance(predictor, Predictor)
    predictor.fit(TRAIN, VALIDATION)
    answers = apply_net(TEST.nets(), task.validation.inputs).argmax(-1)
    expected = (answers == task.validation.labels).double().mean(1).numpy()
    np.testing.assert_allclose(predictor.predict(TEST), expected)
    predictor.save(tmp_path)
    again = QueryPredictor("labels", 50, seed=0)
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict(TEST), predictor.predict(TEST))
    (tmp_path / "inputs.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BenchError, match="cannot be read"):
        again.load(tmp_path)


def test_a_task_with_too_few_inputs_is_known_before_a_fit(tmp_path, monkeypatch):
    """Where its data are; elsewhere the first fit says that they are missing."""
    monkeypatch.setattr(readable, "data_of", lambda zoo: "known")
    monkeypatch.setattr(readable, "task_and_track", lambda zoo: ("made-up", "independent"))
    zoo = str(write_zoo(tmp_path, small_examples(4)))
    counts = {"made-up": 50}

    def inputs_of(name: str, inputs: int, tokens: int) -> tuple[None, range]:
        if name not in counts:
            raise DataError("not here")
        return None, range(counts[name])

    monkeypatch.setattr(readable, "inputs_of", inputs_of)
    readable._count_inputs.cache_clear()
    assert what_it_lacks(zoo, "labels-50") is None
    assert what_it_lacks(zoo, "labels-200") == (
        "it is shown 200 validation examples with all tokens, and their task has 50"
    )
    counts.clear()
    readable._count_inputs.cache_clear()
    assert what_it_lacks(zoo, "labels-200") is None


def test_across_leaves_out_what_is_shown_more_than_the_task_has(tmp_path, monkeypatch):
    zoo = str(write_zoo(tmp_path, small_examples(4)))
    monkeypatch.setattr(readable, "data_of", lambda zoo: "known")
    for there in (100, 1000):
        monkeypatch.setattr(readable, "_inputs_there", lambda zoo, count=there: count)
        models = set(default_models("across", zoo, zoo))
        assert "labels-50" in models
        assert ("consensus" in models) == ("labels-200" in models) == (there == 1000)


def test_confidence_reads_no_labels(task):
    predictor = QueryPredictor("confidence", 50, seed=0)
    predictor.fit(TRAIN, VALIDATION)
    sure = apply_net(TEST.nets(), task.validation.inputs).softmax(-1).amax(-1).mean(1)
    np.testing.assert_allclose(predictor.predict(TEST), sure.double().numpy(), rtol=1e-6)


def test_the_consensus_is_that_of_the_best_training_networks(task, monkeypatch):
    monkeypatch.setattr(queried, "_BEST", 3)
    predictor = QueryPredictor("consensus", 50, seed=0)
    predictor.fit(TRAIN, VALIDATION)
    best = TRAIN.take(np.argsort(-TRAIN.accuracy)[:3])
    said = apply_net(best.nets(), task.validation.inputs).softmax(-1).mean(0).argmax(-1)
    agrees = (apply_net(TEST.nets(), task.validation.inputs).argmax(-1) == said).double().mean(1)
    np.testing.assert_allclose(predictor.predict(TEST), agrees.numpy())


def test_other_seeds_show_other_inputs_and_too_few_are_refused():
    few = [QueryPredictor("labels", 10, seed=seed) for seed in (0, 1)]
    for predictor in few:
        predictor.fit(TRAIN, VALIDATION)
    assert not np.array_equal(few[0].predict(TEST), few[1].predict(TEST))
    with pytest.raises(BenchError, match="50 such inputs, 60 are wanted"):
        QueryPredictor("labels", 60, seed=0).fit(TRAIN, VALIDATION)
    with pytest.raises(BenchError, match="not fitted"):
        QueryPredictor("labels", 10, seed=0).predict(TEST)


def test_inputs_of_other_data_than_the_zoos_are_refused(tmp_path, monkeypatch):
    recipe = Recipe.load("digits-mini")
    digest = load_task("digits", patch=2).digest
    for data, right in ((digest, True), ("0" * 64, False), (None, False)):
        zoo = write_zoo(tmp_path / str(data), small_examples(4))
        described = {**recipe.model_dump(mode="json", exclude={"runs"}), "data": data}
        (zoo / "zoo.json").write_text(json.dumps({"format": FORMAT, "recipe": described}))
        check_inputs(str(zoo), "invariants")
        lacks = what_it_lacks(str(zoo), "confidence")
        assert (lacks is None) == (data is not None)
        if right:
            check_inputs(str(zoo), "confidence")
        else:
            with pytest.raises(BenchError, match="are not those that"):
                check_inputs(str(zoo), "labels-50")
