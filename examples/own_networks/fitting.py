"""A loop that fits a model to networks: to be copied and changed, not a framework."""

import copy
from collections.abc import Callable

import torch
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from transformer_nfn.models import WeightModel


def predict(model: nn.Module, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """What a model says of all networks of a dataset, and what is true."""
    model.eval()
    with torch.no_grad():
        pairs = [(model(nets), targets) for nets, targets in DataLoader(dataset, batch_size=64)]
    said, true = zip(*pairs, strict=True)
    return torch.cat(said), torch.cat(true)


def tau(model: nn.Module, dataset: Dataset) -> float:
    """Kendall's τ between what it says and what is true."""
    return float(kendalltau(*predict(model, dataset)).statistic)


def fit(
    model: WeightModel,
    training: Dataset,
    validation: Dataset,
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    epochs: int = 40,
    rate: float = 3e-3,
    batch: int = 16,
) -> WeightModel:
    """Train a model, and return it as it was in the epoch with the best τ on validation data."""
    nets, targets = next(iter(DataLoader(training, batch_size=len(training))))
    model.prepare(lambda rows: nets[rows], targets, rate)  # what numbers are usual
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, epochs=epochs, steps_per_epoch=-(-len(training) // batch)
    )
    best, kept = -2.0, model
    for _ in range(epochs):
        model.train()
        for nets, targets in DataLoader(training, batch_size=batch, shuffle=True):
            optimizer.zero_grad()
            loss(model(nets), targets).backward()
            optimizer.step()
            schedule.step()
        if (found := tau(model, validation)) > best:
            best, kept = found, copy.deepcopy(model)
    return kept
