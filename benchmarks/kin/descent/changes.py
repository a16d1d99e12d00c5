"""What people do to networks: each makes another of one, whose descent is then known."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from benchmarks.kin.descent.training import Task, batches, new, train

#: Steps of fine-tunes on another task.
TUNED = {"fine-tune light": 15, "fine-tune medium": 60, "fine-tune heavy": 200}
#: Kinds of changes that leave nothing of the weights.
STRANGERS = ("distilled",)
#: Names of the matrices of neurons, by the side of the neurons.
_NEURONS = {
    "out": ("mlp.c_fc", "mlp.gate_proj", "mlp.up_proj", "intermediate.dense", "mlp.fc1"),
    "in": ("mlp.c_proj", "mlp.down_proj", "output.dense", "mlp.fc2"),
}


def root(
    kind: str, seed: int, data: Path, steps: int, task: Task | None = None, order: int = 0
) -> Any:
    """A network trained from a start of its own, in an order of data that others may share."""
    return train(new(kind, seed), batches(kind, data, task or Task(), order), steps)


def changed(
    kind: str, seed: int, net: Any, data: Path, root_steps: int
) -> dict[str, Callable[[], Any]]:
    """By name what is made of a root; `net` itself stays."""

    def tuned(steps: int, lr: float = 1e-3, start: Any = None) -> Any:
        given = batches(kind, data, Task(other=True), 10_000 + seed)
        return train(copy.deepcopy(net if start is None else start), given, steps, lr)

    made = {name: (lambda steps=steps: tuned(steps)) for name, steps in TUNED.items()}
    made |= {
        "lora merged": lambda: _lora(kind, net, data, seed),
        "neurons pruned": lambda: _pruned_neurons(kind, net),
        "heads pruned": lambda: _pruned_heads(net),
        "layer pruned": lambda: _pruned_layer(net),
        "extended": lambda: tuned(15, start=_extended(kind, net, seed)),
        "noise 20 %": lambda: _each(net, lambda w: w + 0.2 * w.std() * torch.randn_like(w)),
        "int8": lambda: _each(net, _int8),
        "bfloat16": lambda: copy.deepcopy(net).to(torch.bfloat16),
        "merge": lambda: _merged(tuned(TUNED["fine-tune medium"]), net),
        "same seed": lambda: root(kind, seed, data, root_steps, order=20_000 + seed),
        "distilled": lambda: _distilled(kind, seed, net, data, root_steps),
    }
    return made


def _each(net: Any, change: Callable[[Tensor], Tensor]) -> Any:
    other = copy.deepcopy(net)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.dim() > 1:
                weight.copy_(change(weight))
    return other


def _int8(weight: Tensor) -> Tensor:
    step = weight.flatten(1).abs().amax(dim=1).clamp_min(1e-12) / 127
    step = step.view(-1, *(1,) * (weight.dim() - 1))
    return (weight / step).round() * step


def _merged(one: Any, two: Any) -> Any:
    other = copy.deepcopy(one)
    with torch.no_grad():
        for weight, second in zip(other.parameters(), two.parameters(), strict=True):
            weight.copy_(0.6 * weight + 0.4 * second)
    return other


class _LowRank(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.zeros(weight.shape[0], 4))
        self.up = nn.Parameter(torch.randn(4, weight.shape[1]) / 4)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.down @ self.up


def _lora(kind: str, net: Any, data: Path, seed: int) -> Any:
    other = copy.deepcopy(net).requires_grad_(False)
    torch.manual_seed(seed)
    inside = [
        module
        for name, module in other.named_modules()
        if getattr(module, "weight", None) is not None
        and module.weight.dim() == 2
        and any(part in name for part in (".h.", "layers.", "layer."))
    ]
    for module in inside:
        parametrize.register_parametrization(module, "weight", _LowRank(module.weight))
    train(other, batches(kind, data, Task(other=True), 30_000 + seed), 60)
    for module in inside:
        parametrize.remove_parametrizations(module, "weight")
    return other


def _neuron_matrices(net: Any) -> list[tuple[str, Any, int]]:
    """The modules of MLPs with the axis of their neurons; GPT-2 stores matrices the other way."""
    found = []
    for name, module in net.named_modules():
        for side, names in _NEURONS.items():
            if name.endswith(names) and "attention" not in name:
                transposed = type(module).__name__ == "Conv1D"
                found.append((side, module, int((side == "in") != transposed)))
    return found


def _pruned_neurons(kind: str, net: Any) -> Any:
    """Without the quarter of its neurons that write least."""
    other = copy.deepcopy(net)
    matrices = _neuron_matrices(other)
    size = next(m.weight.shape[axis] for _, m, axis in matrices)
    group = []
    for side, module, axis in matrices:
        group.append((side, module, axis))
        if side == "out":
            continue
        length = module.weight.detach().movedim(axis, 0).flatten(1).norm(dim=1)
        kept = length.topk(size * 3 // 4).indices.sort().values
        for each, one, place in group:
            one.weight = nn.Parameter(one.weight.detach().index_select(place, kept).contiguous())
            if each == "out" and getattr(one, "bias", None) is not None:
                one.bias = nn.Parameter(one.bias.detach()[kept])
        group = []
    setattr(other.config, "n_inner" if kind == "gpt2" else "intermediate_size", size * 3 // 4)
    return other


def _pruned_heads(net: Any) -> Any:
    """One head of each block writes nothing."""
    other = copy.deepcopy(net)
    names = ("attn.c_proj", "self_attn.o_proj", "attention.output.dense", "attention.o_proj")
    with torch.no_grad():
        for name, module in other.named_modules():
            if name.endswith(names):
                first = module.weight if type(module).__name__ == "Conv1D" else module.weight.T
                first[: first.shape[0] // 4] = 0
    return other


def _layers(net: Any) -> nn.ModuleList:
    return next(m for m in net.modules() if isinstance(m, nn.ModuleList))


def _pruned_layer(net: Any) -> Any:
    other = copy.deepcopy(net)
    del _layers(other)[1]
    name = "n_layer" if hasattr(other.config, "n_layer") else "num_hidden_layers"
    setattr(other.config, name, len(_layers(other)))
    for number, layer in enumerate(_layers(other)):  # caches are numbered
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = number
    return other


def _extended(kind: str, net: Any, seed: int) -> Any:
    """More words, or other classes."""
    other = copy.deepcopy(net)
    torch.manual_seed(seed)
    if kind == "vit":
        other.classifier = nn.Linear(other.classifier.in_features, 12)
        other.config.num_labels = 12
    else:
        other.resize_token_embeddings(other.config.vocab_size + 40)
    return other


def _distilled(kind: str, seed: int, teacher: Any, data: Path, steps: int) -> Any:
    """Another start, trained to say what the root says."""

    def loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
        given = {name: value for name, value in batch.items() if name != "labels"}
        with torch.no_grad():
            wanted = teacher(**given).logits.softmax(dim=-1)
        return nn.functional.cross_entropy(
            net(**given).logits.flatten(0, -2), wanted.flatten(0, -2)
        )

    return train(
        new(kind, 50_000 + seed), batches(kind, data, Task(), 40_000 + seed), steps, loss_of=loss
    )
