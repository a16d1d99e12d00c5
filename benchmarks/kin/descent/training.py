"""Small networks of `transformers`, trained on real text and pictures."""

import csv
import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

VOCABULARY, LENGTH, BATCH = 1000, 32, 16
_TEXT: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
}  # fmt: skip
#: A class of `transformers` and its config, by a name of our own.
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 48, "n_inner": 128, "n_layer": 3, "n_head": 4, "n_positions": 64}
        | {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "llama": ("LlamaForCausalLM", "LlamaConfig", _TEXT | {"num_key_value_heads": 2}),
    "bert": ("BertForMaskedLM", "BertConfig", _TEXT),
    "vit": (
        "ViTForImageClassification",
        "ViTConfig",
        {name: _TEXT[name] for name in list(_TEXT)[:4]}
        | {"image_size": 28, "patch_size": 7, "num_channels": 1, "num_labels": 10},
    ),
}


@dataclass(frozen=True)
class Task:
    """What a network is trained on.

    Attributes:
        other: Another task: text backwards, or whether a digit is odd.
        part: Which half of the data; both if None.
    """

    other: bool = False
    part: int | None = None


def new(kind: str, seed: int, **changes: Any) -> Any:
    """A network as it begins."""
    cls, config, sizes = ARCHITECTURES[kind]
    torch.manual_seed(seed)
    return getattr(transformers, cls)(getattr(transformers, config)(**sizes | changes)).train()


def batches(kind: str, data: Path, task: Task, seed: int) -> Iterator[dict[str, Tensor]]:
    """Inputs and labels without end, in an order that the seed says."""
    generator = torch.Generator().manual_seed(seed)
    given = _pictures(data) if kind == "vit" else _text(data)
    count = len(given[0])
    low, high = (0, count) if task.part is None else (task.part * count // 2, 0)
    high = high or low + count // 2
    while True:
        some = torch.randint(low, high, (BATCH,), generator=generator)
        if kind == "vit":
            labels = given[1][some]
            yield {"pixel_values": given[0][some], "labels": labels % 2 if task.other else labels}
            continue
        ids = given[0][some].flip(1) if task.other else given[0][some]
        if kind != "bert":
            yield {"input_ids": ids, "labels": ids}
            continue
        hidden = torch.rand(ids.shape, generator=generator) < 0.15
        yield {
            "input_ids": ids.where(~hidden, torch.ones(())).long(),
            "labels": ids.where(hidden, torch.tensor(-100)),
        }


def train(
    net: Any,
    given: Iterator[dict[str, Tensor]],
    steps: int,
    lr: float = 2e-3,
    loss_of: Callable[[Any, dict[str, Tensor]], Tensor] | None = None,
) -> Any:
    """Train all that asks for it, with AdamW."""
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=lr)
    net.train()
    for _, batch in zip(range(steps), given, strict=False):
        loss = net(**batch).loss if loss_of is None else loss_of(net, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    return net.eval()


@cache
def _text(data: Path) -> tuple[Tensor]:
    """Titles and texts as the most common words, in pieces of one length; 0 is any other word."""
    with (data / "ag_news" / "train.csv").open(newline="", encoding="utf-8") as file:
        articles = [
            " ".join(row[1:]).lower().split()
            for row, _ in zip(csv.reader(file), range(20_000), strict=False)
        ]
    common = Counter(word for article in articles for word in article).most_common(VOCABULARY - 2)
    numbers = {word: number for number, (word, _) in enumerate(common, start=2)}
    stream = torch.tensor([numbers.get(word, 0) for article in articles for word in article])
    return (stream[: len(stream) // LENGTH * LENGTH].view(-1, LENGTH),)


@cache
def _pictures(data: Path) -> tuple[Tensor, Tensor]:
    raw = gzip.decompress((data / "mnist" / "train-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((data / "mnist" / "train-labels-idx1-ubyte.gz").read_bytes())
    pictures = torch.from_numpy(np.frombuffer(raw, np.uint8, offset=16).copy())
    numbers = torch.from_numpy(np.frombuffer(labels, np.uint8, offset=8).copy()).long()
    return pictures.view(-1, 1, 28, 28).float() / 255, numbers
