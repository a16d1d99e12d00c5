"""What a net does on the test examples, against figures worked out one example at a time."""

import numpy as np
import pytest
import torch

from tests.zoo.small import images_task, make_run, text_task
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.recipe import Training
from transformer_nfn.zoo.training import evaluation
from transformer_nfn.zoo.training.evaluation import BINS, Evaluation
from transformer_nfn.zoo.training.lockstep import Lockstep
from transformer_nfn.zoo.training.trainer import GroupTrainer

IMAGES = NetShape(tokens=9, inputs=4, D=8, heads=2, D_A=12, blocks=2, hidden=6, classes=3)
TEXT = NetShape(tokens=7, inputs=0, D=8, heads=2, D_A=12, blocks=2, hidden=6, classes=3)


def logits_of(shape: NetShape, weights, part) -> np.ndarray:
    nets, count = len(weights), len(part)
    net = Lockstep(shape, weights, count, train=False)
    lengths = None if part.lengths is None else part.lengths.expand(nets, -1)
    return net.logits(part.inputs.expand(nets, -1, -1, -1), lengths).double().numpy()


@pytest.mark.parametrize(("shape", "task"), [(IMAGES, images_task()), (TEXT, text_task())])
def test_all_figures_are_those_of_single_answers(shape, task):
    weights = shape.start([1, 2, 3], [0.5, 1.0, 2.0], torch.float32)
    tested = Evaluation(shape, weights).test(task.test)
    answers = logits_of(shape, weights, task.test)
    labels = task.test.labels.numpy()
    for net, figures in zip(answers, tested, strict=True):
        p = np.exp(net) / np.exp(net).sum(1, keepdims=True)
        right, sure = net.argmax(1) == labels, p.max(1)
        assert figures.test_accuracy == pytest.approx(right.mean())
        assert figures.test_loss == pytest.approx(
            -np.log(p[range(len(p)), labels]).mean(), rel=1e-5
        )
        error = 0.0
        for number in range(BINS):
            inside = (sure * BINS).astype(int).clip(0, BINS - 1) == number
            if inside.any():
                error += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
        assert figures.calibration_error == pytest.approx(error, abs=1e-6)


def test_noise_is_the_same_for_every_net_and_at_every_time(monkeypatch):
    task = images_task()
    weights = IMAGES.start([1, 1], [1.0, 1.0], torch.float32)
    evaluated = Evaluation(IMAGES, weights)
    first, second = evaluated.test(task.test)
    assert first == second == evaluated.test(task.test)[0]
    assert Evaluation(IMAGES, weights).test(task.test)[0] == first
    monkeypatch.setattr(evaluation, "NOISE", 0.0)
    without = Evaluation(IMAGES, weights).test(task.test)[0]
    assert without.noisy_accuracy == without.test_accuracy
    monkeypatch.setattr(evaluation, "NOISE", 100.0)
    drowned = Evaluation(IMAGES, weights)._noisy(task.test)
    spread = (drowned.inputs - task.test.inputs).std() / task.test.inputs.std()
    assert spread.item() == pytest.approx(100.0, rel=0.1)


def test_a_checkpoint_has_all_of_them():
    training = Training(batch=10, epochs=1, checkpoints=(1,), warmup=0, schedule="step")
    kept = GroupTrainer(IMAGES, images_task(), training, [make_run(1)]).train()
    for checkpoint in kept[0]:
        assert all(value is not None for value in checkpoint.tested)
