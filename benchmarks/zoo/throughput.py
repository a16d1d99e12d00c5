"""Speed of the zoo's trainer: net-steps a second against a plain loop over single nets.

Both train the paper's net with Adam, L2 and dropout 0.1 on one thread, on the same tensors that are
already in memory, without augmentation. The trainer runs in torch and, where there is a C++
compiler, compiled. The plain loop is nn.Linear, nn.LayerNorm, nn.Dropout, autograd and torch.optim,
one net after the other; of its two ways to write attention, by hand and by torch's fused kernel,
the faster one counts. All are timed in turns and a ratio is the median over the turns. The limit is
the time that the step's matmul flops would take at the rate of one large matmul, measured in the
same turns.

    python benchmarks/zoo/throughput.py
    python benchmarks/zoo/throughput.py --quick --json
    python benchmarks/zoo/throughput.py --quick --profile
    python benchmarks/zoo/throughput.py --sizes
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.space import sine_positions
from transformer_nfn.zoo import GroupTrainer, Hyperparameters, NetShape, Recipe, Run
from transformer_nfn.zoo.tasks import Part, Task, patches
from transformer_nfn.zoo.training.compiled import Compiled
from transformer_nfn.zoo.training.engines import InTorch

#: How many times as fast the trainer should be for the sizes of a recipe, either way.
WAYS = ("torch", "compiled")
TARGETS = {"mnist-paper": (1.5, 2.5), "mnist-small": (3.0, 5.0)}
HYPERPARAMETERS = Hyperparameters(
    optimizer="adam", lr=1e-3, l2=1e-6, dropout=0.1, init_std=0.2, train_fraction=1.0
)
EXAMPLES = 3000


class PlainBlock(nn.Module):
    def __init__(self, shape: NetShape, fused: bool) -> None:
        super().__init__()
        D = shape.D
        self.heads, self.fused = shape.heads, fused
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.a, self.b = nn.Linear(D, shape.D_A), nn.Linear(shape.D_A, D)
        self.norm1, self.norm2 = (nn.LayerNorm(D, elementwise_affine=False) for _ in range(2))
        self.dropout = nn.Dropout(HYPERPARAMETERS.dropout)

    def forward(self, x: Tensor) -> Tensor:
        b, t, D = x.shape
        x = self.norm1(x)
        q, k, v = (
            layer(x).view(b, t, self.heads, D // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = (q @ k.transpose(-1, -2) / math.sqrt(D // self.heads)).softmax(-1) @ v
        x = self.dropout(self.o(y.transpose(1, 2).reshape(b, t, D)))
        return self.dropout(self.b(self.a(self.norm2(x)).relu()))


class PlainNet(nn.Module):
    def __init__(self, shape: NetShape, fused: bool) -> None:
        super().__init__()
        self.embedding = nn.Linear(shape.inputs, shape.D)
        self.register_buffer("positions", sine_positions(shape.tokens, shape.D).float())
        self.blocks = nn.Sequential(*(PlainBlock(shape, fused) for _ in range(shape.blocks)))
        self.norm = nn.LayerNorm(shape.D, elementwise_affine=False)
        self.first = nn.Linear(shape.D, shape.hidden)
        self.second = nn.Linear(shape.hidden, shape.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.blocks(self.embedding(x) + self.positions))
        return self.second(self.first(x.mean(1)).relu())


def make_task(recipe: Recipe) -> Task:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(EXAMPLES, 28, 28, generator=generator) * 2 - 1
    labels = torch.randint(10, (EXAMPLES,), generator=generator)
    assert recipe.patch is not None
    part = Part(patches(pixels, recipe.patch), labels, pixels=pixels)
    return Task("random", 10, part, part, part, recipe.patch)


def plain_step(recipe: Recipe, task: Task, fused: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    net = PlainNet(recipe.shape, fused)
    h = HYPERPARAMETERS
    optimizer = torch.optim.Adam(net.parameters(), lr=h.lr, weight_decay=h.l2)
    inputs, labels, b = task.train.inputs, task.train.labels, recipe.training.batch

    def step() -> None:
        index = torch.randint(EXAMPLES, (b,))
        optimizer.zero_grad()
        F.cross_entropy(net(inputs[index]), labels[index]).backward()
        optimizer.step()

    return step


def group_step(
    recipe: Recipe, task: Task, nets: int, *, compiled: bool = False
) -> Callable[[], None] | None:
    """None where nothing can be compiled."""
    training = recipe.training.model_copy(update={"crop": 0, "train_examples": None})
    runs = [Run(str(seed), seed, HYPERPARAMETERS) for seed in range(nets)]
    trainer = GroupTrainer(recipe.shape, task, training, runs)
    if not compiled:
        trainer.engine = InTorch(recipe.shape, trainer.weights, training.batch)
    elif not isinstance(trainer.engine, Compiled):
        return None
    generator = torch.Generator().manual_seed(1)
    rates = trainer.rates(1, 0)

    def step() -> None:
        index = torch.randint(EXAMPLES, (nets, training.batch), generator=generator)
        trainer.step(index, rates)

    return step


def flops(recipe: Recipe) -> float:
    """Of the matmuls of one net-step: forward once, backward twice, the inputs' gradient not."""
    s, b = recipe.shape, recipe.training.batch
    rows = b * s.tokens
    block = rows * (4 * s.D * s.D + 2 * s.D * s.D_A + 2 * s.tokens * s.D)
    classifier = b * (s.D * s.hidden + s.hidden * s.classes)
    return 2.0 * (3 * (s.blocks * block + classifier) + 2 * rows * s.inputs * s.D)


def rate(step: Callable[[], object], seconds: float) -> float:
    """Calls a second."""
    step()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds or count == 0:
        step()
        count += 1
    return count / (time.perf_counter() - start)


def measure(name: str, turns: int, seconds: float) -> dict[str, dict[str, float]]:
    """Of each way that can be had: medians over the turns."""
    recipe = Recipe.load(name)
    task, nets = make_task(recipe), recipe.lockstep
    made = {way: group_step(recipe, task, nets, compiled=way == "compiled") for way in WAYS}
    steps = {way: step for way, step in made.items() if step is not None}
    plain = {fused: plain_step(recipe, task, fused) for fused in (False, True)}
    big, out = torch.randn(768, 768), torch.empty(768, 768)
    seen: dict[str, dict[str, list[float]]] = {
        way: {"group": [], "plain": [], "ratio": [], "limit": []} for way in steps
    }
    for _ in range(turns):
        alone = max(rate(plain[False], seconds), rate(plain[True], seconds))
        peak = 2.0 * 768**3 * rate(lambda: torch.mm(big, big, out=out), seconds / 4)
        for way, step in steps.items():
            together = nets * rate(step, seconds)
            found = (together, alone, together / alone, together * flops(recipe) / peak)
            for values, one in zip(seen[way].values(), found, strict=True):
                values.append(one)
    return {
        way: {key: statistics.median(values) for key, values in kinds.items()}
        for way, kinds in seen.items()
    }


def profile(name: str) -> None:
    recipe = Recipe.load(name)
    step = group_step(recipe, make_task(recipe), recipe.lockstep)
    assert step is not None
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        for _ in range(10):
            step()
    print(name)
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


def sizes() -> None:
    """Net-steps a second for several numbers of nets in lockstep."""
    for name, choices in (("mnist-paper", (1, 2, 4)), ("mnist-small", (1, 2, 4, 8, 16, 32))):
        recipe = Recipe.load(name)
        steps = {nets: group_step(recipe, make_task(recipe), nets) for nets in choices}
        seen = {
            nets: [nets * rate(step, 0.5) for _ in range(5)]
            for nets, step in steps.items()
            if step is not None
        }
        figures = {nets: round(statistics.median(values), 1) for nets, values in seen.items()}
        print(f"{name}: net-steps a second by nets in lockstep: {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="3 short turns instead of 15")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--profile", action="store_true", help="where the trainer's time goes")
    parser.add_argument("--sizes", action="store_true", help="compare numbers of nets")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.profile:
        for name in TARGETS:
            profile(name)
        return
    if options.sizes:
        sizes()
        return
    turns, seconds = (3, 0.5) if options.quick else (15, 2.0)
    figures = []
    print("size          way        plain /s   group /s   ratio  target   of the matmul limit")
    for name, targets in TARGETS.items():
        measured = measure(name, turns, seconds)
        for way, target in zip(WAYS, targets, strict=True):
            if way not in measured:
                print(f"{name:12s} {way:9s}: no C++ compiler on this machine")
                continue
            seen = measured[way]
            figures.append({"size": name, "way": way, "target": target, **seen})
            print(
                f"{name:12s} {way:9s} {seen['plain']:9.1f} {seen['group']:10.1f} "
                f"{seen['ratio']:7.2f} {target:7.1f} {100 * seen['limit']:20.0f} %"
            )
    if options.json:
        ok = all(figure["ratio"] >= figure["target"] for figure in figures)
        print(json.dumps({"figures": figures, "ok": ok}))


if __name__ == "__main__":
    main()
