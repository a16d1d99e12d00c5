"""Weights in, weights out: repair damaged nets by one learned step, equivariantly.

    python examples/weights_out/repair.py --out FOLDER --json
    python examples/weights_out/repair.py --quick --json

Nets of the zoo `digits-mini` get noise on the weights of their blocks. A step sees the damaged
weights and the gradient on one batch of images, and gives new weights. It is trained on the nets of
some folds and judged by the loss on test images of the nets of other folds; then all of it again
after each damaged net was moved by a random group element, which does not change its function.

FOLDER gets the zoo and the trained steps, where a second run goes on, `weights_out.json` and
`weights_out.png`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))

from steps import (
    Equivariant,
    Flat,
    Rates,
    losses,
    plain_gradient,
    raised_gradient,
    with_blocks,
)

from transformer_nfn.group import random_element, relative_error
from transformer_nfn.jobs import InProcess
from transformer_nfn.jobs import track as track_jobs
from transformer_nfn.space import NetBatch, apply_net
from transformer_nfn.zoo import Build, Recipe, load_task
from transformer_nfn.zoo.dataset import Zoo, ok

#: Noise, relative to the root mean square of each tensor over the zoo.
NOISE = 0.3
#: A net that learned nothing cannot be repaired: accuracy on validation images before the damage.
ALIVE = 0.2
Direction = Callable[[NetBatch, Tensor, Tensor], object]


class Size(NamedTuple):
    """How much of everything."""

    runs: int  # of the recipe
    held_out: int  # folds from here on are for the test
    steps: int  # of training
    nets: int  # at a time
    images: int  # in a batch
    channels: int
    damages: int  # of each net of the test
    judged: int  # images of the test


FULL, QUICK = Size(128, 8, 150, 16, 64, 4, 2, 400), Size(8, 5, 6, 8, 32, 1, 1, 100)


def main() -> int:
    """Run it; 0 if all targets are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a folder; a second run goes on there")
    parser.add_argument("--quick", action="store_true", help="the same, smaller: under 45 s")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        report = experiment(out, QUICK if options.quick else FULL)
        (out / "weights_out.json").write_text(json.dumps(report, indent=1) + "\n")
        draw(report["figures"], out / "weights_out.png")
    for name, row in report["figures"]["steps"].items():
        print(f"{name:32} loss {row['loss']:.3f}, moved {row['moved_loss']:.3f}")  # noqa: T201
    if options.json:
        print(json.dumps(report))  # noqa: T201
    return 0 if report["ok"] else 1


def experiment(out: Path, size: Size) -> dict:
    """Build, train, judge."""
    begin, world = time.time(), World(out, size)
    spec, blocks = world.nets.blocks.spec, world.nets.blocks.blocks
    raised_sizes, plain_sizes = world.sizes(raised_gradient), world.sizes(plain_gradient)
    shrink = world.train("shrink", Rates(spec, blocks, moves=False), plain_gradient)
    plain = world.train("plain", Rates(spec, blocks), plain_gradient)
    raised = world.train("raised", Rates(spec, blocks), raised_gradient)
    # Both learned maps go on from the rates, so what they gain is theirs. The rates go on as well.
    layers = Equivariant(spec, blocks, raised_sizes, channels=size.channels)
    count = sum(parameter.numel() for parameter in layers.parameters())
    flat = Flat(spec, blocks, plain_sizes, parameters=count)
    layers.rates.load_state_dict(raised.state_dict())
    flat.rates.load_state_dict(plain.state_dict())
    world.train("layers", layers, raised_gradient)
    world.train("flat", flat, plain_gradient)
    raised = world.train("raised-on", raised, raised_gradient)
    plain = world.train("plain-on", plain, plain_gradient)
    rows = {
        "nothing": world.judge(None, plain_gradient),
        "shrink each tensor": world.judge(shrink, plain_gradient),
        "gradient, 16 rates": world.judge(plain, plain_gradient),
        "gradient, flat MLP": world.judge(flat, plain_gradient),
        "raised gradient, 16 rates": world.judge(raised, raised_gradient),
        "raised gradient, layers": world.judge(layers, raised_gradient),
        "layers, another net's gradient": world.judge(layers, raised_gradient, stranger=True),
    }
    gain = rows["raised gradient, 16 rates"]["by_net"] - rows["raised gradient, layers"]["by_net"]
    by_run = torch.stack([gain[world.run == run].mean() for run in world.run.unique()])
    error = {d: world.equivariance(layers, getattr(torch, d)) for d in ("float64", "float32")}
    figures = {
        "nets": {"training": len(world.training), "test": len(world.test), "noise": NOISE},
        "undamaged_loss": world.undamaged,
        "parameters": {"layers": count, "flat": sum(p.numel() for p in flat.parameters())},
        "steps": {n: {k: v for k, v in r.items() if k != "by_net"} for n, r in rows.items()},
        "gain_of_layers_over_rates": by_run.mean().item(),
        "its_standard_error_over_runs": (by_run.std() / len(by_run) ** 0.5).item(),
        "equivariance_error": error,
        "seconds": round(time.time() - begin, 1),
    }
    change = {n: abs(r["moved_loss"] - r["loss"]) for n, r in rows.items()}
    targets = {
        "float64 equivariance below 1e-10": error["float64"] < 1e-10,
        "moved nets: the layers' loss changes by less than 1e-3": change["raised gradient, layers"]
        < 1e-3,
        "moved nets: the flat MLP's loss changes by more": change["gradient, flat MLP"]
        > 10 * change["raised gradient, layers"],
    }
    if size is FULL:
        better = rows["raised gradient, layers"]["loss"] < rows["shrink each tensor"]["loss"]
        targets["the layers repair better than shrinking does"] = better
    return {"figures": figures, "targets": targets, "ok": all(targets.values())}


def recipe_of(size: Size) -> Recipe:
    """The zoo's recipe; the quick one has nets of one optimizer, trained half as long."""
    recipe = Recipe.load("digits-mini")
    if size is FULL:
        return recipe
    grid = {"lr": [3e-3, 5e-3], "l2": [1e-6, 1e-4], "dropout": [0.0], "init_std": [0.1, 0.2, 0.3]}
    family = {"optimizer": ["adam"], "train_fraction": [1.0], **grid}
    training = {**recipe.training.model_dump(), "epochs": 6, "checkpoints": [4, 6]}
    changes = {"name": "digits-quick", "training": training, "families": [family]}
    return Recipe.model_validate({**recipe.model_dump(), **changes})


class World:
    """The zoo, its two parts, and the digits."""

    def __init__(self, out: Path, size: Size) -> None:
        self.out, self.size = out, size
        self.task = load_task("digits")
        recipe = recipe_of(size)
        folder = out / recipe.name
        build = Build(recipe, folder, runs=size.runs)
        failed = build.run(
            InProcess(),
            lambda outcomes: track_jobs(outcomes, len(build.groups), describe="groups of the zoo"),
        )
        if failed:
            raise SystemExit(f"{len(failed)} groups of the zoo failed: run the same command again")
        table, self.nets = Zoo(folder).rows(ok)
        column = {n: torch.tensor(table.column(n).to_numpy()) for n in ("fold", "run")}
        alive = torch.tensor(table.column("validation_accuracy").to_numpy()) > ALIVE
        self.training = (alive & (column["fold"] < size.held_out)).nonzero().flatten()
        self.test = (alive & (column["fold"] >= size.held_out)).nonzero().flatten()
        if not len(self.training) or not len(self.test):
            raise SystemExit("a part has no nets: give Size more runs")
        self.run, self.rms = column["run"][self.test], self.nets.blocks.rms()
        clean = [self._test_loss(self.pick(some))[0] for some in self.test.split(16)]
        self.undamaged = torch.cat(clean).mean().item()

    def pick(self, rows: Tensor) -> NetBatch:
        """Some nets."""
        parts = [{n: W[rows] for n, W in p.items()} for p in self._outside()]
        return NetBatch(self.nets.blocks[rows], *parts)

    def _outside(self) -> tuple:
        return self.nets.embedding, self.nets.classifier

    def damaged(self, rows: Tensor, generator: torch.Generator) -> NetBatch:
        """Some nets, with noise on the weights of their blocks."""
        nets = self.pick(rows)
        noise = {
            name: W + NOISE * self.rms[name] * torch.randn(W.shape, generator=generator)
            for name, W in nets.blocks.tensors.items()
        }
        return with_blocks(nets, nets.blocks.replace(noise))

    def images(self, nets: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A batch of training images for each net."""
        part = self.task.train
        chosen = torch.randint(len(part), (nets, self.size.images), generator=generator)
        return part.inputs[chosen], part.labels[chosen]

    def sizes(self, direction: Direction) -> tuple[dict[str, float], dict[str, float]]:
        """The usual sizes of weights and directions, from training nets."""
        generator = torch.Generator().manual_seed(1)
        nets = self.damaged(self.training[::4][:32], generator)
        found = direction(nets, *self.images(nets.blocks.networks, generator))
        return self.rms, found.rms()

    def train(self, name: str, step: nn.Module, direction: Direction) -> nn.Module:
        """Lower the loss on other images than those of the gradient; read it if it is there."""
        size = self.size
        file = self.out / f"{name}-{size.runs}-{size.steps}.safetensors"
        if file.exists():
            step.load_state_dict(load_file(file))
            return step
        fast = [p for n, p in step.named_parameters() if "numbers" in n]
        slow = [p for n, p in step.named_parameters() if "numbers" not in n]
        groups = [{"params": fast, "lr": 0.03}, {"params": slow, "lr": 1e-3}]
        optimizer = torch.optim.Adam([group for group in groups if group["params"]])
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, size.steps)
        generator = torch.Generator().manual_seed(2)
        for _ in track(range(size.steps), f"train {name}", console=Console(stderr=True)):
            chosen = torch.randint(len(self.training), (size.nets,), generator=generator)
            nets = self.damaged(self.training[chosen], generator)
            found = direction(nets, *self.images(size.nets, generator))
            new = with_blocks(nets, step(nets.blocks, found))
            loss = losses(new, *self.images(size.nets, generator)).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(step.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        save_file(step.state_dict(), file)
        return step

    @torch.no_grad()
    def judge(
        self, step: nn.Module | None, direction: Direction, *, stranger: bool = False
    ) -> dict:
        """Loss and accuracy on test images after the step: as damaged, and moved by the group."""
        found = {}
        for moved in (False, True):
            generator, parts = torch.Generator().manual_seed(3), []
            for _ in range(self.size.damages):
                one = []
                for rows in self.test.split(16):
                    nets = self.damaged(rows, generator)
                    images = self.images(len(rows), generator)
                    if moved:
                        nets = self.move(nets)
                    d = direction(nets, *images)
                    if stranger:
                        d = d.map(lambda W: W.roll(len(W) // 2, 0))
                    new = nets if step is None else with_blocks(nets, step(nets.blocks, d))
                    one.append(torch.stack(self._test_loss(new)))
                parts.append(torch.cat(one, dim=1))
            found[moved] = torch.stack(parts).mean(0)  # loss and accuracy of each net
        return {
            "loss": found[False][0].mean().item(),
            "moved_loss": found[True][0].mean().item(),
            "accuracy": found[False][1].mean().item(),
            "moved_accuracy": found[True][1].mean().item(),
            "by_net": found[False][0],
        }

    @torch.no_grad()
    def _test_loss(self, nets: NetBatch) -> tuple[Tensor, Tensor]:
        part = self.task.test.first(self.size.judged)
        logits = apply_net(nets, part.inputs)
        loss = F.cross_entropy(
            logits.mT, part.labels.expand(logits.shape[:2]), reduction="none"
        )  # n s
        return loss.mean(1), (logits.argmax(-1) == part.labels).float().mean(1)

    def move(self, nets: NetBatch) -> NetBatch:
        """Another group element for each net and block; the function stays."""
        U = nets.blocks
        shape = {"networks": U.networks, "blocks": U.blocks}
        element = random_element(U.spec, **shape, generator=torch.Generator().manual_seed(4))
        return with_blocks(nets, element(U))

    @torch.no_grad()
    def equivariance(self, step: nn.Module, dtype: torch.dtype) -> float:
        """How far step(gU) is from g step(U), the gradient computed anew at gU."""
        generator = torch.Generator().manual_seed(5)
        nets = self.damaged(self.test[:8], generator)
        inputs, labels = self.images(nets.blocks.networks, generator)
        parts = [{n: W.to(dtype) for n, W in p.items()} for p in (nets.embedding, nets.classifier)]
        nets = NetBatch(nets.blocks.to(dtype=dtype), *parts)
        step.to(dtype)
        changes = []
        for one in (nets, self.move(nets)):
            d = raised_gradient(one, inputs.to(dtype), labels)
            new = step(one.blocks, d)
            changes.append(new.replace({n: new[n] - one.blocks[n] for n in new.tensors}))
        step.to(torch.float32)
        return relative_error(changes[1], self.move(with_blocks(nets, changes[0])).blocks)


def draw(figures: dict, file: Path) -> None:
    """Losses of all steps, before and after the nets were moved."""
    from matplotlib.figure import Figure

    rows = figures["steps"]
    picture = Figure(figsize=(7, 3.4), layout="constrained")
    axes = picture.subplots()
    places = torch.arange(len(rows)).flip(0).tolist()
    for key, shift, colour, label in (
        ("loss", 0.2, "#4477aa", "damaged nets"),
        ("moved_loss", -0.2, "#ee8866", "the same functions, moved by the group"),
    ):
        values = [row[key] for row in rows.values()]
        axes.barh([p + shift for p in places], values, 0.38, color=colour, label=label)
    axes.axvline(
        figures["undamaged_loss"], color="black", linestyle="--", label="before the damage"
    )
    axes.set_yticks(places, list(rows))
    axes.set_xlim(left=0)
    axes.set_xlabel("loss on test images after one step, held-out nets")
    picture.legend(loc="outside upper center", ncols=3, fontsize=8)
    picture.savefig(file, dpi=110)


if __name__ == "__main__":
    sys.exit(main())
