from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.bench.small import small_examples, three_parts
from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models import neural
from transformer_nfn.bench.models.fittings import CHOSEN, NEURAL, USUAL, candidates, chosen
from transformer_nfn.bench.models.neural import Fitting, NeuralPredictor, usual_scale
from transformer_nfn.bench.models.predictor import Predictor, Step
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.group import conditioned, random_element
from transformer_nfn.models import (
    FlatMLP,
    FlatMLPConfig,
    NFNConfig,
    StatNN,
    StatNNConfig,
    TransformerNFN,
)
from transformer_nfn.space import NetBatch

TRAIN, VALIDATION, TEST = three_parts(small_examples(40))
SHORT = Fitting(epochs=4, warmup=1)
#: Where only what was made matters, not what it learned.
FEW, ONE = TRAIN.take(np.arange(16)), Fitting(epochs=1, warmup=0)


def statnn(fitting: Fitting = SHORT, seed: int = 0) -> NeuralPredictor:
    return NeuralPredictor(
        lambda net: StatNN(StatNNConfig.of(net, seed=seed)), fitting=fitting, seed=seed
    )


def nfn(net: NetBatch) -> TransformerNFN:
    return TransformerNFN(
        NFNConfig.of(
            net.blocks.spec, blocks=net.blocks.blocks, channels=(2,), classifier=75, seed=4
        )
    )


def test_a_variant_with_a_rank_is_fitted_with_it():
    kind = MODELS["nfn-rank-2"]
    short = {**kind.settings, "fitting": ONE.model_dump()}
    predictor = kind.make(seed=0, tokens=4, device="cpu", **short)
    predictor.fit(FEW, VALIDATION)
    assert predictor.module.config.rank == 2


def test_it_is_a_predictor():
    assert isinstance(statnn(), Predictor)


def test_it_learns():
    predictor = statnn(Fitting(batch=8, epochs=30, warmup=2, lr=3e-3))
    predictor.fit(TRAIN, VALIDATION)
    assert kendall_tau(predictor.predict(TEST), TEST.accuracy) > 0.6


@pytest.mark.parametrize(
    ("model", "invariant", "runs", "epochs", "least"),
    # The scale of random weights is in the weights, but hardly in the function: free probes come
    # no further than 0.48 on these runs.
    [("tokens", False, 40, 20, 0.6), ("probegen", True, 120, 10, 0.4)],
)
def test_a_rival_learns_and_is_saved(
    model: str, invariant: bool, runs: int, epochs: int, least: float, tmp_path: Path
):
    assert MODELS[model].origin == "rival"
    assert MODELS[model].invariant == invariant
    train, validation, test = three_parts(small_examples(runs))

    def made() -> NeuralPredictor:
        fitting = {**MODELS[model].settings["fitting"], "epochs": epochs, "lr": 3e-3}
        return MODELS[model].make(seed=0, tokens=4, device="cpu", fitting=fitting)

    predictor = made()
    predictor.fit(train, validation)
    before = predictor.predict(test)
    assert kendall_tau(before, test.accuracy) > least
    predictor.save(tmp_path)
    again = made()
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict(test), before)
    element = random_element(
        test.shape.spec, networks=len(test), blocks=2, generator=torch.Generator().manual_seed(0)
    )
    change = np.abs(predictor.predict(test.moved(element)) - before).max()
    assert change < 1e-3 if invariant else change > 0.01


def test_the_rivals_are_what_the_page_says():
    probes, generated, tokens = (
        MODELS[name].make(seed=0, tokens=4, device="cpu", fitting=ONE.model_dump())
        for name in ("probes", "probegen", "tokens")
    )
    for predictor in (probes, generated, tokens):
        predictor.fit(FEW, VALIDATION)
    assert generated.module.config.generator == (32, 64, 64)
    free = generated.module.config.model_copy(update={"generator": None})
    assert free == probes.module.config
    config = tokens.module.config
    assert (config.numbers, config.width, config.layers) == (128, 64, 2)
    assert MODELS["tokens"].settings["fitting"]["scaled"]
    assert not MODELS["probegen"].settings["fitting"]["scaled"]  # it reads the function


def test_the_epoch_is_the_best_on_validation():
    told: list[Step] = []
    predictor = statnn(Fitting(epochs=8, warmup=2))
    predictor.fit(TRAIN, VALIDATION, watch=told.append)
    taus = [step.validation_tau for step in told]
    assert [step.done for step in told] == list(range(1, 9))
    assert predictor.epoch == 1 + int(np.argmax(taus))
    chosen = kendall_tau(predictor.predict(VALIDATION), VALIDATION.accuracy)
    assert chosen == pytest.approx(max(taus), abs=1e-12)


def test_test_rows_have_no_part_in_a_fit():
    """A leak would be seen: the same fit, whatever the test rows are."""
    one, other = statnn(), statnn()
    one.fit(TRAIN, VALIDATION)
    other.fit(TRAIN, VALIDATION)
    np.testing.assert_array_equal(one.predict(TEST), other.predict(TEST))
    seen = statnn()
    seen.fit(TEST, VALIDATION)
    assert not np.array_equal(seen.predict(TEST), one.predict(TEST))


@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_fit_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch, stop):
    monkeypatch.setattr(neural, "STATE_EVERY", -1.0)
    whole = statnn()
    whole.fit(TRAIN, VALIDATION)

    def interrupt(step: Step) -> None:
        if step.done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        statnn().fit(TRAIN, VALIDATION, state=tmp_path, watch=interrupt)
    told: list[Step] = []
    resumed = statnn()
    resumed.fit(TRAIN, VALIDATION, state=tmp_path, watch=told.append)
    assert [step.done for step in told] == list(range(stop + 1, 5))
    np.testing.assert_array_equal(resumed.predict(TEST), whole.predict(TEST))
    assert resumed.epoch == whole.epoch
    assert resumed.earlier_seconds > 0


def test_a_state_of_another_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(neural, "STATE_EVERY", -1.0)
    statnn().fit(TRAIN, VALIDATION, state=tmp_path)
    other = NeuralPredictor(lambda net: FlatMLP(FlatMLPConfig.of(net)), fitting=SHORT)
    with pytest.raises(BenchError, match="delete it"):
        other.fit(TRAIN, VALIDATION, state=tmp_path)
    (tmp_path / "fit.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BenchError, match="delete it"):
        statnn().fit(TRAIN, VALIDATION, state=tmp_path)


def test_saved_and_loaded_it_predicts_the_same(tmp_path: Path):
    predictor = statnn()
    predictor.fit(TRAIN, VALIDATION)
    predictor.save(tmp_path)
    again = statnn()
    again.load(tmp_path)
    np.testing.assert_array_equal(again.predict(TEST), predictor.predict(TEST))
    assert again.parameter_count == predictor.parameter_count


def test_one_that_is_not_fitted_says_so():
    with pytest.raises(BenchError, match="not fitted"):
        statnn().predict(TEST)


def test_warm_up_is_linear_and_then_constant(monkeypatch):
    rates: list[float] = []
    step = torch.optim.AdamW.step

    def note(self: torch.optim.AdamW) -> None:
        rates.append(self.param_groups[0]["lr"])
        step(self)

    monkeypatch.setattr(torch.optim.AdamW, "step", note)
    statnn(Fitting(batch=len(TRAIN) // 2, epochs=3, warmup=2)).fit(TRAIN, VALIDATION)
    assert rates == pytest.approx([0.00025, 0.0005, 0.00075, 0.001, 0.001, 0.001])


@pytest.mark.parametrize("balanced", [False, True])
def test_transformer_nfn_does_not_see_the_group(balanced):
    predictor = NeuralPredictor(nfn, fitting=SHORT, balanced=balanced)
    predictor.fit(TRAIN, VALIDATION)
    element = random_element(
        TEST.shape.spec,
        networks=len(TEST),
        blocks=2,
        generator=torch.Generator().manual_seed(0),
        matrices=conditioned(1e3),
    )
    before, after = predictor.predict(TEST), predictor.predict(TEST.moved(element))
    np.testing.assert_allclose(after, before, rtol=1e-3)
    blind = statnn()
    blind.fit(TRAIN, VALIDATION)
    assert np.abs(blind.predict(TEST.moved(element)) - blind.predict(TEST)).max() > 0.01


def test_the_last_epoch_and_the_mean_of_the_last_ones_can_be_kept(monkeypatch):
    seen: list[dict[str, torch.Tensor]] = []
    ended = neural._Progress.epoch_ended

    def note(self, tau: float, seconds: float) -> None:
        seen.append({n: t.clone() for n, t in self._module.state_dict().items()})
        ended(self, tau, seconds)

    monkeypatch.setattr(neural._Progress, "epoch_ended", note)
    for keep in ("last", "average"):
        seen.clear()
        predictor = statnn(Fitting(epochs=8, warmup=1, keep=keep))
        predictor.fit(TRAIN, VALIDATION)
        assert len(seen) == predictor.epoch == 8
        counted = seen[-1:] if keep == "last" else seen[6:]  # the last quarter
        for name, tensor in predictor.module.state_dict().items():
            expected = torch.stack([state[name].double() for state in counted]).mean(0)
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("keep", ["last", "average"])
def test_an_interrupted_mean_goes_on_too(tmp_path, monkeypatch, keep):
    monkeypatch.setattr(neural, "STATE_EVERY", -1.0)
    fitting = Fitting(epochs=8, warmup=1, keep=keep, scaled=True, schedule="cosine")

    def interrupt(step: Step) -> None:
        if step.done == 7:
            raise KeyboardInterrupt

    whole = statnn(fitting)
    whole.fit(TRAIN, VALIDATION)
    with pytest.raises(KeyboardInterrupt):
        statnn(fitting).fit(TRAIN, VALIDATION, state=tmp_path, watch=interrupt)
    resumed = statnn(fitting)
    resumed.fit(TRAIN, VALIDATION, state=tmp_path)
    np.testing.assert_array_equal(resumed.predict(TEST), whole.predict(TEST))


def test_a_cosine_falls_to_nothing_after_the_warm_up():
    fitting = Fitting(lr=0.1, epochs=11, warmup=1, schedule="cosine")
    rates = [fitting.rate(position) for position in (0.5, 1.0, 6.0, 11.0)]
    assert rates == pytest.approx([0.05, 0.1, 0.05, 0.0])
    assert Fitting(lr=0.1, warmup=0).rate(0.0) == 0.1


def test_weight_decay_reaches_the_optimizer():
    without, with_decay = (statnn(Fitting(epochs=4, weight_decay=w)) for w in (0.0, 10.0))
    sizes = []
    for predictor in (without, with_decay):
        predictor.fit(TRAIN, VALIDATION)
        sizes.append(sum(p.square().sum().item() for p in predictor.module.parameters()))
    assert sizes[1] < sizes[0]


def test_one_scale_for_each_tensor_is_learned_and_saved(tmp_path):
    scale = usual_scale(TRAIN)
    for offset, dims in TRAIN.shape.stored.values():
        place = slice(offset, offset + int(np.prod(dims)))
        assert len(scale[place].unique()) == 1
        sizes = (TRAIN.weights[:, place] * scale[place]).double().square().mean(1).sqrt()
        assert sizes.median().item() == pytest.approx(1.0, rel=1e-5)
    fitting = Fitting(epochs=4, warmup=1, scaled=True)
    predictor = NeuralPredictor(nfn, fitting=fitting)
    predictor.fit(TRAIN, VALIDATION)
    # Of other units nothing is seen: a scale commutes with every change of coordinates.
    other = replace(TRAIN, weights=8 * TRAIN.weights)
    again = NeuralPredictor(nfn, fitting=fitting)
    again.fit(other, replace(VALIDATION, weights=8 * VALIDATION.weights))
    enlarged = again.predict(replace(TEST, weights=8 * TEST.weights))
    np.testing.assert_allclose(enlarged, predictor.predict(TEST), rtol=1e-5)
    predictor.save(tmp_path)
    loaded = NeuralPredictor(nfn, fitting=fitting)
    loaded.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(TEST), predictor.predict(TEST))
    (tmp_path / "scale.safetensors").write_bytes(b"nonsense")
    with pytest.raises(BenchError, match=r"scale\.safetensors cannot be read"):
        NeuralPredictor(nfn, fitting=fitting).load(tmp_path)


def test_every_neural_model_has_the_same_candidates_and_is_one_of_them():
    for model in NEURAL:
        tried = candidates(model)
        assert len(tried) == 12
        for networks, models in CHOSEN.items():
            fitting = chosen(model, networks if model in models else USUAL)
            assert fitting in tried
            settings = MODELS[model].settings_on(*networks)
            assert settings["fitting"] == fitting.model_dump()
        elsewhere = MODELS[model].settings_on("digits", "shared")
        assert elsewhere["fitting"] == chosen(model).model_dump()  # of the usual search
