"""Hidden neurons of one block against those of another: which is which."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transformer_nfn.identity.matching.assignment import linear_sum_assignment

#: Numbers to which each neuron is projected for the search of its partner.
_SHADOW = 12
#: Most neurons without a partner that are paired by assignment; more are a different network.
_MOST = 4096


def match_neurons(ours: Float[Tensor, "a p"], theirs: Float[Tensor, "a p"]) -> Int[Tensor, " a"]:
    """For each of their neurons the number of ours, a permutation.

    Where each has a clear partner, a search among random projections finds it; what is left, equal
    neurons for example, is paired by assignment.

    Args:
        ours: What belongs to each neuron of the first network, in the basis of the second.
        theirs: The same of the second.
    """
    count = len(ours)
    same = torch.arange(count)
    if count == 0 or _close(ours, theirs).all():
        return same
    from scipy.spatial import cKDTree  # type: ignore[import-untyped]  # takes a while

    seed = torch.Generator().manual_seed(0)
    look = torch.randn(ours.shape[1], _SHADOW, generator=seed, dtype=ours.dtype)
    _, found = cKDTree((ours @ look).numpy()).query((theirs @ look).numpy())
    partner = torch.from_numpy(found).long()
    sure = _close(ours[partner], theirs)
    sure &= torch.bincount(partner[sure], minlength=count)[partner] == 1
    order = torch.where(sure, partner, -1)
    left = torch.nonzero(~sure).flatten()
    free = torch.ones(count, dtype=torch.bool)
    free[partner[sure]] = False
    rest = torch.nonzero(free).flatten()
    if len(left) > _MOST:
        order[left] = rest
        return order
    cost = torch.cdist(theirs[left], ours[rest])
    _, columns = linear_sum_assignment(cost.numpy())
    order[left] = rest[torch.from_numpy(columns)]
    return order


def scale_between(
    a: Tensor, b: Tensor, a_out: Tensor | None = None, b_out: Tensor | None = None
) -> Tensor:
    """For each row the number s, "a 1 1", for which s a is closest to b, and a_out / s to b_out."""
    forth = (a * b).sum(1) / a.square().sum(1).clamp_min(1e-300)
    scale = forth
    if a_out is not None and b_out is not None:
        back = (a_out * b_out).sum(1) / a_out.square().sum(1).clamp_min(1e-300)
        both = (forth + 1 / back) / 2
        scale = torch.where(torch.isfinite(both) & (both != 0), both, forth)
    usable = torch.isfinite(scale) & (scale != 0)
    return torch.where(usable, scale, torch.ones_like(scale))[:, None, None]


def back(part: Tensor, order: Tensor) -> Tensor:
    """Parts given for the second block's units, for those of the first: out[order[i]] = in[i]."""
    moved = torch.empty_like(part)
    moved[order] = part
    return moved


def rms(tensor: Tensor) -> Tensor:
    """The root mean square of all numbers, as something to divide by."""
    return tensor.square().mean().sqrt().clamp_min(1e-300)


def _close(ours: Float[Tensor, "a p"], theirs: Float[Tensor, "a p"]) -> Tensor:
    """Pairs that are nearer than a tenth of their size: for the search, not for the verdict."""
    distance: Tensor = (ours - theirs).norm(dim=1)
    near: Tensor = distance < 0.1 * theirs.norm(dim=1)
    return near
