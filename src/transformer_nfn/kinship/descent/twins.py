"""Blocks of one network that are copies of each other, so that their orders are not independent."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from torch import Tensor

from transformer_nfn.kinship.descent.comparing import LEVEL, NEAR, NetKin
from transformer_nfn.kinship.descent.counting import count
from transformer_nfn.kinship.descent.units import View

#: A block by its network and number.
Name = tuple[str, int]


def find_twins(networks: Sequence[NetKin]) -> tuple[tuple[Name, ...], ...]:
    """Groups of blocks of A that are kin to each other: grown from one, or tied.

    Of few units no count is unlikely enough, so blocks whose numbers are near are twins too.
    """
    blocks = [
        ((net.name, number), some) for net in networks for number, some in enumerate(net.looks)
    ]
    group = list(range(len(blocks)))
    limit = math.log(LEVEL / max(len(blocks), 1) ** 2)
    for i, j in combinations(range(len(blocks)), 2):
        if group[i] != group[j] and _are_twins(blocks[i][1], blocks[j][1], limit):
            group = [group[i] if one == group[j] else one for one in group]
    every = (
        tuple(blocks[i][0] for i, one in enumerate(group) if one == which)
        for which in sorted(set(group))
    )
    return tuple(members for members in every if len(members) > 1)


def _are_twins(ours: Mapping[View, Tensor], theirs: Mapping[View, Tensor], limit: float) -> bool:
    for mine, one in ours.items():
        for other, two in theirs.items():
            if (mine.label, mine.width) != (other.label, other.width) or one.shape != two.shape:
                continue
            norms = (one.norm() * two.norm()).clamp_min(1e-30)
            if ((one * two).sum() / norms).abs().item() >= NEAR:
                return True
            if mine.tensor == other.tensor and count(mine, mine, one, two).log_p < limit:
                return True
    return False
