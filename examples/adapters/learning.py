"""Learning from adapters: the invariant model, and the same MLP on what is not invariant."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from transformer_nfn.adapters import AdapterCollection, AdapterNet, AdapterNetShape

#: Gives logits for some adapters of a collection.
Predictor = Callable[[AdapterCollection], Tensor]
#: Fits one: adapters, their labels, how many classes, epochs, seed.
Learner = Callable[[AdapterCollection, Tensor, int, int, int], Predictor]
_HIDDEN, _BATCH, _RATE, _DECAY = 64, 32, 3e-3, 1e-2


def factors(collection: AdapterCollection) -> Tensor:
    """All numbers of A and B, "n numbers", with the zeros of smaller ranks."""
    return torch.cat([batch.flat().flatten(1) for batch in collection.batches], dim=1)


def products(collection: AdapterCollection) -> Tensor:
    """All updates A B written out, "n numbers": invariant, with D² numbers for each module."""
    return torch.cat([batch.product("AB").flatten(1) for batch in collection.batches], dim=1)


def learn_invariant(*, spectrum: bool) -> Learner:
    """How to fit an `AdapterNet`, with soft ranks or with linear functions of updates alone."""

    def learn(
        train: AdapterCollection, labels: Tensor, classes: int, epochs: int, seed: int
    ) -> Predictor:
        generator = torch.Generator().manual_seed(seed)
        shape = AdapterNetShape.of(train, classes, hidden=_HIDDEN, spectrum=spectrum)
        net = AdapterNet(shape, generator)
        net.calibrate(train.batches)
        _fit(net, lambda some: net(train.select(some).batches), labels, epochs, generator)
        return lambda collection: net(collection.batches)

    return learn


def learn_flat(read: Callable[[AdapterCollection], Tensor]) -> Learner:
    """How to fit an MLP as that of `AdapterNet` on numbers that are read in another way."""

    def learn(
        train: AdapterCollection, labels: Tensor, classes: int, epochs: int, seed: int
    ) -> Predictor:
        numbers = read(train)
        mean, std = numbers.mean(0), numbers.std(0).clamp(min=1e-8)
        torch.manual_seed(seed)
        width = numbers.shape[1]
        net = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, classes)
        )
        generator = torch.Generator().manual_seed(seed)
        rows = (numbers - mean) / std
        _fit(net, lambda some: net(rows[some]), labels, epochs, generator)
        return lambda collection: net((read(collection) - mean) / std)

    return learn


def _fit(
    net: nn.Module,
    logits: Callable[[Sequence[int]], Tensor],
    labels: Tensor,
    epochs: int,
    generator: torch.Generator,
) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=_RATE, weight_decay=_DECAY)
    steps = epochs * -(-len(labels) // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for some in torch.randperm(len(labels), generator=generator).split(_BATCH):
            loss = cross_entropy(logits(some.tolist()), labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
