"""The model that comes with the package, on networks that it has never seen."""

import json

import numpy as np
import pytest

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.saved import _SHIPPED, load_predictor, named_folder, saved_names
from transformer_nfn.bench.ranking import Net, rank_nets
from transformer_nfn.zoo import GroupTrainer, Hyperparameters, Recipe, Run
from transformer_nfn.zoo.tasks import load_task

SHIPPED = "digits-mini"


@pytest.fixture(autouse=True)
def no_models_of_a_user(tmp_path, monkeypatch):
    monkeypatch.setenv("TNFN_MODELS", str(tmp_path / "models"))


def test_it_ranks_new_networks_without_a_fit():
    recipe = Recipe.load(SHIPPED)
    training = recipe.training.model_copy(update={"epochs": 4, "checkpoints": [4]})
    rates = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
    runs = [
        Run(
            str(number),
            10_000 + number,
            Hyperparameters(
                optimizer="adam", lr=lr, l2=1e-6, dropout=0.0, init_std=0.2, train_fraction=1.0
            ),
        )
        for number, lr in enumerate(rates)
    ]
    task = load_task("digits", patch=recipe.patch)
    kept = [one[0] for one in GroupTrainer(recipe.shape, task, training, runs).train()]
    accuracy = np.array([one.tested.test_accuracy for one in kept])
    assert accuracy.max() - accuracy.min() > 0.4
    nets = [Net(str(n), one.weights.numpy(), {}) for n, one in enumerate(kept)]
    predicted = {one.path: one.predicted for one in rank_nets(load_predictor(SHIPPED), nets)}
    assert kendall_tau(np.array([predicted[net.path] for net in nets]), accuracy) > 0.6


def test_a_model_of_the_user_with_its_name_counts_instead():
    assert saved_names() == [SHIPPED]
    folder = named_folder(SHIPPED)
    folder.mkdir(parents=True)
    (folder / "predictor.json").write_text("{}")
    assert saved_names() == [SHIPPED]
    with pytest.raises(BenchError, match=r"predictor\.json is not the description"):
        load_predictor(SHIPPED)


def test_it_is_small_and_says_nothing_of_where_it_was_made():
    folder = _SHIPPED / SHIPPED
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    record = json.loads((folder / "predictor.json").read_text())["record"]
    assert record["folder"] == SHIPPED
    assert record["all_runs"]
