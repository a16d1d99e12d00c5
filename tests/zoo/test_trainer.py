from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from tests.zoo.plain import PlainNet, plain_optimizer
from tests.zoo.small import images_task, make_run, text_task
from transformer_nfn.group import relative_error
from transformer_nfn.zoo.nets import NetShape, views
from transformer_nfn.zoo.recipe import Recipe, Training
from transformer_nfn.zoo.runs import derived_seed
from transformer_nfn.zoo.tasks import Cropper, Task, load_task
from transformer_nfn.zoo.training import engines
from transformer_nfn.zoo.training import trainer as trainer_module
from transformer_nfn.zoo.training.masks import Masks
from transformer_nfn.zoo.training.trainer import GroupTrainer, Orders

TRAINING = Training(batch=12, epochs=6, checkpoints=(3, 6), warmup=1, schedule="step")
COMPILED = {"D": 16, "heads": 2, "D_A": 24, "hidden": 40}
STEPS = 13  # of which five are an epoch: the warm-up, the next, and the beginning of a third


def shape_of(task: Task, block: str = "paper", **sizes: int) -> NetShape:
    return NetShape(
        block=block,
        tokens=task.tokens,
        inputs=task.width if task.patch else 0,
        classes=task.classes,
        **({"D": 8, "heads": 2, "D_A": 11, "hidden": 5} | sizes),
    )


def key_bias(shape: NetShape) -> torch.Tensor:
    """Where a residual net's key biases are.

    Softmax does not see them, so their gradient is rounding noise, which Adam and RMSprop divide by
    its own size: they are not determined, and change nothing.
    """
    here = torch.zeros(1, shape.size)
    for name, tensor in views(here, shape.trained).items():
        if name.startswith("bQKV"):
            tensor[:, shape.D : 2 * shape.D] = 1.0
    return here[0] > 0


def train_alone(shape: NetShape, task: Task, run, training: Training, steps: int) -> torch.Tensor:
    """The run by plain modules, autograd and torch.optim; the random numbers are the trainer's."""
    net = (
        PlainNet(shape)
        .double()
        .load(
            shape.start(
                [derived_seed(run.seed, "start")], [run.hyperparameters.init_std], torch.float64
            )[0]
        )
    )
    optimizer = plain_optimizer(net, run.hyperparameters)
    orders = Orders([run], len(task.train))
    rows = training.batch * shape.tokens
    masks = Masks(
        [run.hyperparameters.dropout],
        [derived_seed(run.seed, "dropout")],
        layers=2 * shape.blocks,
        rows=rows,
        width=shape.D,
        like=torch.zeros((), dtype=torch.float64),
    )
    crops = torch.Generator().manual_seed(derived_seed(run.seed, "crop"))
    per_epoch = orders.count // training.batch
    for step in range(steps):
        epoch, within = divmod(step, per_epoch)
        if within == 0:
            order = orders.epoch()[0]
        index = order[within * training.batch : (within + 1) * training.batch]
        inputs = task.train.inputs[index].double()
        if training.crop:
            shift = torch.randint(2 * training.crop + 1, (training.batch, 2), generator=crops)
            cropper = Cropper(task.train.pixels.double(), task.patch, training.crop)
            inputs = cropper(index[None], shift[None])[0]
        lengths = None if task.train.lengths is None else task.train.lengths[index]
        masks.draw()
        mask = masks.part(0, rows)[0].unflatten(1, (training.batch, shape.tokens))
        progress = epoch + within / per_epoch
        unit = 1 / per_epoch
        if training.schedule == "epoch":
            progress, unit = float(epoch), 1.0
        for group in optimizer.param_groups:
            group["lr"] = trainer_module.rate(run.hyperparameters.lr, progress, unit, training)
        optimizer.zero_grad()
        F.cross_entropy(net(inputs, lengths, mask), task.train.labels[index]).backward()
        optimizer.step()
    return net.flat()


def train_group(shape: NetShape, task: Task, runs, training: Training, steps: int) -> torch.Tensor:
    group = GroupTrainer(shape, task, training, runs, dtype=torch.float64)
    for step in range(steps):
        epoch, within = divmod(step, group.steps)
        if within == 0:
            order = group.orders.epoch()
        index = order[:, within * training.batch : (within + 1) * training.batch]
        group.step(index, group.rates(epoch, within))
    return group.weights


@pytest.mark.parametrize("optimizer", ["sgd", "sgdm", "adam", "rmsprop"])
@pytest.mark.parametrize(
    ("block", "task", "training", "sizes"),
    [
        ("paper", images_task(), TRAINING, {}),
        ("residual", images_task(), TRAINING.model_copy(update={"schedule": "epoch"}), {}),
        ("paper", text_task(), TRAINING, {}),
        ("paper", images_task(), TRAINING.model_copy(update={"crop": 2}), {}),
        # Widths with which passes are compiled, where there is a compiler.
        ("paper", text_task(width=16), TRAINING, COMPILED),
        ("residual", images_task(), TRAINING, COMPILED),
    ],
    ids=["paper", "residual", "text", "crops", "compiled", "compiled-residual"],
)
def test_a_group_equals_each_net_trained_alone(optimizer, block, task, training, sizes):
    shape = shape_of(task, block, **sizes)
    lr = 0.03 if optimizer.startswith("sgd") else 0.001
    runs = [make_run(seed, optimizer=optimizer, lr=lr * (1 + seed)) for seed in range(3)]
    weights = train_group(shape, task, runs, training, steps=STEPS)
    for row, run in zip(weights, runs, strict=True):
        alone = train_alone(shape, task, run, training, steps=STEPS)
        start = shape.start(
            [derived_seed(run.seed, "start")], [run.hyperparameters.init_std], torch.float64
        )[0]
        seen = ~key_bias(shape)
        assert relative_error(row[seen], alone[seen]) <= 1e-10
        assert relative_error(alone, start) > 1e-3  # it has moved


def test_the_comparison_notices_another_seed():
    task = images_task()
    shape, run = shape_of(task), make_run(1)
    other = run._replace(seed=2)
    alone = train_alone(shape, task, other, TRAINING, steps=3)
    assert relative_error(train_group(shape, task, [run], TRAINING, 3)[0], alone) > 1e-3


def test_a_batch_in_parts_gives_the_same_as_one_pass(monkeypatch):
    task = images_task()
    shape, runs = shape_of(task), [make_run(seed) for seed in range(3)]
    whole = train_group(shape, task, runs, TRAINING, steps=10)
    monkeypatch.setattr(engines, "CPU_ROWS", 4 * shape.tokens * len(runs))
    engine = GroupTrainer(shape, task, TRAINING, runs).engine
    assert isinstance(engine, engines.InTorch)
    assert engine.part_size == 4
    parts = train_group(shape, task, runs, TRAINING, steps=10)
    assert relative_error(parts, whole) <= 1e-10


@pytest.fixture(scope="module")
def digits() -> tuple[Recipe, Task]:
    recipe = Recipe.load("digits-mini")
    return recipe, load_task("digits", patch=recipe.patch)


def an_epoch(recipe: Recipe, task: Task, runs) -> torch.Tensor:
    group = GroupTrainer(recipe.shape, task, recipe.training, runs)
    group.epoch(0)
    return group.weights


@pytest.mark.parametrize("optimizer", ["sgdm", "adam"])
def test_neighbours_do_not_matter(digits, optimizer):
    recipe, task = digits
    kind = [
        run
        for run in recipe.all_runs
        if run.hyperparameters.optimizer == optimizer and run.hyperparameters.train_fraction == 0.7
    ]
    first = an_epoch(recipe, task, kind[:6])
    second = an_epoch(recipe, task, [kind[9], kind[7], kind[2], kind[8], kind[0], kind[6]])
    assert torch.equal(first[2], second[2])
    assert torch.equal(first[0], second[4])
    alone = an_epoch(recipe, task, kind[2:3])
    assert relative_error(alone[0], first[2]) <= 1e-5
    larger = an_epoch(recipe, task, kind[:13])
    assert relative_error(larger[2], first[2]) <= 1e-5
    assert not torch.equal(first[2], first[0])


def test_a_diverged_run_is_kept_as_such_and_disturbs_nobody():
    task = images_task()
    shape = shape_of(task)
    calm = [make_run(seed, optimizer="sgd", lr=1e-3) for seed in range(3)]
    wild = make_run(3, optimizer="sgd", lr=1e30, l2=1.0)
    together = GroupTrainer(shape, task, TRAINING, [*calm[:2], wild]).train()
    apart = GroupTrainer(shape, task, TRAINING, calm).train()
    assert [c.name for c in together[2]] == ["3", "6", "best"]
    assert {c.status for c in together[2]} == {"diverged"}
    assert all(c.weights is None and c.tested.test_accuracy is None for c in together[2])
    for one, same in zip(together[:2], apart[:2], strict=True):
        assert all(torch.equal(a.weights, b.weights) for a, b in zip(one, same, strict=True))
        assert [c.tested for c in one] == [c.tested for c in same]


def test_the_best_checkpoint_is_the_first_with_the_highest_validation_accuracy(monkeypatch):
    task = images_task()
    shape, runs = shape_of(task), [make_run(seed) for seed in range(2)]
    group = GroupTrainer(shape, task, TRAINING, runs)
    seen, history = group.evaluate.accuracy, []

    def watched(part):
        accuracy = seen(part)
        if part is group.validation:
            history.append((accuracy.clone(), shape.to_stored(group.weights).clone()))
        return accuracy

    monkeypatch.setattr(group.evaluate, "accuracy", watched)
    kept = group.train()
    for run in range(2):
        accuracies = torch.stack([accuracy[run] for accuracy, _ in history])
        best = int(accuracies.argmax())  # the first of equal ones
        assert kept[run][-1].epoch == best + 1
        assert torch.equal(kept[run][-1].weights, history[best][1][run])
        assert torch.equal(kept[run][0].weights, history[2][1][run])


def test_the_accuracy_is_that_of_the_plain_net():
    for task, block in ((images_task(), "residual"), (text_task(), "paper")):
        shape = shape_of(task, block)
        group = GroupTrainer(shape, task, TRAINING, [make_run(seed) for seed in range(3)])
        group.epoch(0)
        for row, accuracy in zip(group.weights, group.evaluate.accuracy(task.test), strict=True):
            ones = torch.ones(2 * shape.blocks, 1, 1, 1)
            logits = PlainNet(shape).load(row)(task.test.inputs, task.test.lengths, ones)
            right = (logits.argmax(-1) == task.test.labels).float().mean()
            assert abs(float(accuracy - right)) < 1e-6


def test_a_group_has_one_optimizer_and_one_fraction():
    task = images_task()
    with pytest.raises(ValueError, match="one optimizer"):
        GroupTrainer(shape_of(task), task, TRAINING, [make_run(0), make_run(1, optimizer="sgd")])
    with pytest.raises(ValueError, match="one train_fraction"):
        GroupTrainer(shape_of(task), task, TRAINING, [make_run(0), make_run(1, train_fraction=0.5)])


def test_warm_up_and_cosine():
    training = Training(batch=1, epochs=100, checkpoints=(), warmup=10, schedule="epoch")
    rates = [trainer_module.rate(0.1, float(epoch), 1.0, training) for epoch in range(100)]
    assert rates[0] == pytest.approx(0.01)
    assert rates[9] == rates[10] == pytest.approx(0.1)
    assert rates[55] == pytest.approx((0.1 + 1e-5) / 2)
    assert rates[99] < 1e-4
    assert all(a >= b for a, b in pairwise(rates[10:]))
