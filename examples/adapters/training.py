"""A tiny ViT that reads upright digits, and adapters that teach it to read changed ones."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification
from transformers.utils.logging import disable_progress_bar

#: What an adapter is for: images "n 1 height width" that the base model was not trained on.
TASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "quarter": lambda images: images.rot90(1, (2, 3)),
    "mirrored": lambda images: images.flip(3),
    "inverted": lambda images: -images,
    "half": lambda images: images.rot90(2, (2, 3)),
    "three-quarters": lambda images: images.rot90(3, (2, 3)),
    "upside-down": lambda images: images.flip(2),
    "transposed": lambda images: images.mT,
    "upright": lambda images: images,
}
RANKS = (1, 2, 4, 8)
MODULES = ["q_proj", "v_proj", "fc1"]
FIGURES = "figures.json"
_TRAIN, _BATCH = 1400, 64


@dataclass(frozen=True)
class Recipe:
    """All that the adapters depend on.

    Attributes:
        tasks: How many of `TASKS`.
        copies: Adapters for each task and rank.
        base_steps: Steps of the base model.
        steps: Steps of an adapter.
        seed: Of everything.
        shared: All adapters of a rank start from the same A.
    """

    tasks: int = len(TASKS)
    copies: int = 10
    base_steps: int = 500
    steps: int = 40
    seed: int = 0
    shared: bool = False


@dataclass(frozen=True)
class Run:
    """One adapter: its task, rank, lora_alpha, learning rate, its seed, and that of its start."""

    task: str
    rank: int
    alpha: int
    rate: float
    seed: int
    start: int

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.task}-r{self.rank}-{self.seed:04}"


def runs(recipe: Recipe) -> list[Run]:
    """All adapters of a recipe. Neither scale nor rate depends on task or rank."""
    generator = torch.Generator().manual_seed(recipe.seed)
    cells = product(list(TASKS)[: recipe.tasks], RANKS, range(recipe.copies))
    found = []
    for number, (task, rank, _) in enumerate(cells):
        times = 2 ** int(torch.randint(3, (), generator=generator))  # lora_alpha is r, 2 r or 4 r
        rate = 0.01 * 2 ** float(torch.rand((), generator=generator) - 0.5)
        start = 0 if recipe.shared else 1 + number
        found.append(Run(task, rank, times * rank, rate, number, start))
    return found


def build(recipe: Recipe, out: Path) -> Iterator[Run]:
    """Train what `out` lacks, and give each adapter when it is there."""
    note = out / "recipe.json"
    if note.exists() and json.loads(note.read_text()) != asdict(recipe):
        raise SystemExit(f"{out} has adapters of another recipe; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(asdict(recipe)))
    disable_progress_bar()  # ours counts adapters
    train, test = digits(recipe.seed)
    base = _base(recipe, out / "base", train)
    for run in runs(recipe):
        folder = out / "adapters" / run.name
        if not folder.exists():
            # It gets its name when it is whole: what has a name is not trained again.
            unfinished = out / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            _train_adapter(base, run, recipe.steps, unfinished, train, test)
            folder.parent.mkdir(exist_ok=True)
            unfinished.rename(folder)
        yield run


def digits(seed: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images in [-1, 1] and labels, to train and to test with."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).div(8).sub(1).unsqueeze(1)
    labels = torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    return (images[:_TRAIN], labels[:_TRAIN]), (images[_TRAIN:], labels[_TRAIN:])


def _base(recipe: Recipe, folder: Path, train: tuple[Tensor, Tensor]) -> Any:
    if not folder.exists():
        torch.manual_seed(recipe.seed)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        images = {"image_size": 8, "patch_size": 2, "num_channels": 1}
        config = ViTConfig(**sizes, **images, num_attention_heads=4, num_labels=10)
        base = ViTForImageClassification(config)
        _fit(base, *train, steps=recipe.base_steps, rate=3e-3, seed=recipe.seed)
        base.save_pretrained(folder.with_name("unfinished-base"))
        folder.with_name("unfinished-base").rename(folder)
    return ViTForImageClassification.from_pretrained(folder)


def _train_adapter(
    base: Any,
    run: Run,
    steps: int,
    folder: Path,
    train: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
) -> None:
    torch.manual_seed(run.start)  # PEFT draws A from torch's global generator
    config = LoraConfig(r=run.rank, lora_alpha=run.alpha, target_modules=MODULES)
    net = get_peft_model(copy.deepcopy(base), config)
    net.peft_config["default"].base_model_name_or_path = "base"
    change = TASKS[run.task]
    before = _accuracy(net, change(test[0]), test[1])
    _fit(net, change(train[0]), train[1], steps=steps, rate=run.rate, seed=1 + run.seed)
    # Else PEFT asks the hub for a model of this name, to see whether words were added to it.
    net.save_pretrained(folder, save_embedding_layers=False)
    after = _accuracy(net, change(test[0]), test[1])
    (folder / FIGURES).write_text(json.dumps({"before": before, "after": after}))


def _fit(net: Any, images: Tensor, labels: Tensor, *, steps: int, rate: float, seed: int) -> None:
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=rate)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        some = torch.randint(len(images), (_BATCH,), generator=generator)
        loss = cross_entropy(net(pixel_values=images[some]).logits, labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _accuracy(net: Any, images: Tensor, labels: Tensor) -> float:
    return float((net(pixel_values=images).logits.argmax(1) == labels).double().mean())
