"""How much nearer the neurons of two networks are than chance, whatever basis they are in.

The basis comes from the words that both know: the orthogonal matrix that carries the rows of one
table to those of the other. Then each neuron is matched with the nearest one, and the basis found
again from words and matched neurons. The same is done with the words of one network in a random
order, which is what chance makes of it; the score is how far the first is on the way from there to
a copy. It is no p-value: nothing bounds it for strangers that learned alike, so
`benchmarks/kin/kinship.py` measures what strangers reach.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.kinship.descent.counting import spread
from transformer_nfn.kinship.disguise.neurons import Seen, common_words, networks_seen

#: How often the basis is found again.
_ROUNDS = 3
#: Neurons of a block that are looked at.
_NEURONS = 512


@dataclass(frozen=True)
class Disguise:
    """What is seen of one network in another.

    Attributes:
        score: 0 for chance, 1 for copies; the mean of the blocks.
        blocks: Of each network the blocks of the shallower file: number, that of the other file,
            score. Empty where nothing can be compared.
        reason: Why not.
    """

    score: float
    blocks: dict[str, tuple[tuple[int, int, float], ...]]
    reason: str | None = None


@torch.no_grad()
def in_disguise(ours: Checkpoint, theirs: Checkpoint, seed: int = 0) -> Disguise:
    """Look for one network in another whose neurons, heads and basis may have been moved.

    Args:
        ours: The first; the order of the two makes no difference where they are as deep.
        theirs: The second.
        seed: Of the random order that says what chance does.
    """
    return compare_seen(networks_seen(ours), networks_seen(theirs), seed)


def compare_seen(ours: Sequence[Seen], theirs: Sequence[Seen], seed: int = 0) -> Disguise:
    """The same of what was read of two files."""
    named = {net.name: net for net in theirs}
    pairs = [(net, named[net.name]) for net in ours if net.name in named]
    found: dict[str, tuple[tuple[int, int, float], ...]] = {}
    reason = None if pairs else "one has an encoder and a decoder, the other has not"
    for one, two in pairs:
        few, many = sorted((one, two), key=lambda net: len(net.blocks))
        words = common_words(few, many)
        if words is None:
            reason = "no table of words or patches of the same name and width"
        elif any(a.shape[1:] != b.shape[1:] for a in few.blocks[:1] for b in many.blocks[:1]):
            reason = "their neurons read and write in other ways"
        else:
            found[one.name] = _scores(few, many, words, seed)
    scores = [score for blocks in found.values() for _, _, score in blocks]
    return Disguise(sum(scores) / max(len(scores), 1), found, reason)


def _scores(
    few: Seen, many: Seen, words: tuple[Tensor, Tensor], seed: int
) -> tuple[tuple[int, int, float], ...]:
    ours = [block[spread(len(block), _NEURONS)] for block in few.blocks]
    table, other = words
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    near = _matched(ours, many.blocks, table, other)
    chance = _matched(ours, many.blocks, table, other[order])
    return tuple(
        (number, which, (cosine - least) / max(1 - least, 1e-6))
        for number, ((which, cosine), (_, least)) in enumerate(zip(near, chance, strict=True))
    )


def _matched(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], words: Tensor, other_words: Tensor
) -> list[tuple[int, float]]:
    """For each block the one of the other network that is nearest, and how near."""
    pairs = [(words, other_words)]
    found: list[tuple[int, float]] = []
    for _ in range(_ROUNDS):
        basis = _basis(pairs)
        turned = [block @ basis for block in ours]
        found, pairs = [], [(words, other_words)]
        for block, plain in zip(turned, ours, strict=True):
            each = [_nearest(block, other) for other in theirs]
            means = [cosines.mean().item() for _, cosines in each]
            which = max(range(len(means)), key=means.__getitem__)
            numbers, cosines = each[which]
            found.append((which, means[which]))
            weight = cosines.clamp_min(0)[:, None, None]
            pairs.append(((plain * weight).flatten(0, 1), theirs[which][numbers].flatten(0, 1)))
    return found


def _basis(pairs: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, "x x"]:
    """The orthogonal matrix that carries the rows of each pair nearest to each other."""
    product = sum((one.T @ two for one, two in pairs), torch.zeros(()))
    u, _, vh = torch.linalg.svd(product.double())
    basis: Tensor = u @ vh
    return basis.float()


def _nearest(ours: Float[Tensor, "u s x"], theirs: Float[Tensor, "t s x"]) -> tuple[Tensor, Tensor]:
    """For each neuron the nearest of the other block, by all that it reads and writes."""
    cosines = ours.flatten(1) @ theirs.flatten(1).T / ours.shape[1]
    best = cosines.max(dim=1)
    return best.indices, best.values
