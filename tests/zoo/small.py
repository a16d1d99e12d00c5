"""Small tasks and runs for tests, made on the spot."""

import torch

from transformer_nfn.zoo.runs import Hyperparameters, Run, content_hash
from transformer_nfn.zoo.tasks import Part, Task, patches


def images_task(examples: int = 70, side: int = 6, patch: int = 2, classes: int = 3) -> Task:
    generator = torch.Generator().manual_seed(5)

    def part(count: int) -> Part:
        pixels = torch.rand(count, side, side, generator=generator) * 2 - 1
        labels = torch.randint(classes, (count,), generator=generator)
        return Part(patches(pixels, patch), labels, pixels=pixels)

    return Task("images", classes, part(examples), part(20), part(30), patch)


def text_task(examples: int = 70, tokens: int = 7, width: int = 8, classes: int = 3) -> Task:
    generator = torch.Generator().manual_seed(6)

    def part(count: int) -> Part:
        lengths = torch.randint(1, tokens + 1, (count,), generator=generator)
        vectors = torch.randn(count, tokens, width, generator=generator)
        vectors[torch.arange(tokens) >= lengths[:, None]] = 0.0
        return Part(vectors, torch.randint(classes, (count,), generator=generator), lengths)

    return Task("text", classes, part(examples), part(20), part(30), None)


def make_run(seed: int, **changes: object) -> Run:
    defaults = {
        "optimizer": "adam",
        "lr": 1e-3 * (1 + seed % 3),
        "l2": 10.0 ** -(2 + 2 * (seed % 3)),
        "dropout": 0.05 * (seed % 4),
        "init_std": 0.1 + 0.1 * (seed % 4),
        "train_fraction": 1.0,
    }
    h = Hyperparameters.model_validate(defaults | changes)
    return Run(content_hash([seed, h.model_dump()]), seed, h)
