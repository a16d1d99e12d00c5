"""One block against another: the group element between them, and what it leaves unexplained."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transformer_nfn.group import GroupElement
from transformer_nfn.identity.bases import find_basis
from transformer_nfn.identity.canonical import rotated
from transformer_nfn.identity.heads import (
    Heads,
    between,
    between_pairs,
    form_distances,
    match_heads,
)
from transformer_nfn.identity.neurons import match_neurons
from transformer_nfn.space import WeightBatch


@dataclass(frozen=True)
class BlockMatch:
    """What one block is to another.

    Attributes:
        element: The group element.
        bases: Of the streams that attention and MLP write, where they were not known before.
        moved: The first block's canonical weights after both.
        conditions: For each group of the second block the condition numbers of M and of N.
        forms: For each head of the second block the relative distances of Q Kᵀ and of V O.
        distances: The squared distances of all pairs of heads, for pictures.
        heads: The first block's heads in the order and basis of the second, and the second's.
    """

    element: GroupElement
    bases: tuple[Tensor | None, Tensor | None]
    moved: WeightBatch
    conditions: tuple[Tensor, Tensor]
    forms: tuple[Tensor, Tensor]
    distances: Tensor
    heads: tuple[Heads, Heads]


#: Of the streams that attention reads, that it writes and the MLP reads, that the MLP writes.
Bases = tuple[Tensor | None, Tensor | None, Tensor | None]


def match_block(
    ours: WeightBatch,
    theirs: WeightBatch,
    bases: Bases,
    *,
    known: bool,
    rounding: float,
    fix_ones: bool,
) -> BlockMatch:
    """Find the element that carries one canonical block to another.

    Args:
        ours: The first block, canonical, in its own bases.
        theirs: The second.
        bases: Of the streams, None for the identity.
        known: Whether the last two are known; if not, they are found here.
        rounding: Unit roundoff of the stored numbers.
        fix_ones: Whether bases that are found here fix the ones.
    """
    spec = theirs.spec
    start = rotated(ours, bases)
    a, b = Heads.of(start), Heads.of(theirs)
    groups, inside, cost = match_heads(a, b, outputs=known)
    picked = a.pick(groups, inside)
    k = _query_key(picked, b)
    middle = bases[1]
    if not known:
        middle = _middle_basis(picked, b, start, theirs, rounding, fix_ones)
        if middle is not None:
            start = rotated(ours, (bases[0], middle, bases[2]))
            picked = replace(picked, O=picked.O @ middle)
    v = between(picked.V, b.V, *(heads.O.transpose(2, 3).flatten(1, 2) for heads in (picked, b)))
    order, scale = _neurons(start, theirs, known)
    parts: dict[str, Tensor] = {"a": order, "k": _back(k, groups), "v": _back(v, groups)}
    parts |= {"g": groups, "m": inside} if a.rotary else {"h": groups}
    if scale is not None:
        parts["s"] = _back(scale, order)
    element = GroupElement(spec, {label: part[None, None] for label, part in parts.items()})
    last = bases[2]
    if not known:
        last = _last_basis(element(start), theirs, rounding, fix_ones)
        if last is not None:
            start = rotated(ours, (bases[0], middle, last))
    size = k.norm(dim=-1) if a.rotary else None
    conditions = (
        torch.linalg.cond(k) if size is None else size.amax(-1) / size.amin(-1),
        torch.linalg.cond(v),
    )
    qk, vo = form_distances(picked, b, outputs=True)
    return BlockMatch(
        element,
        (middle, last),
        element(start),
        conditions,
        (_diagonal(qk), _diagonal(vo)),
        cost.flatten(2).flatten(0, 1),
        (picked, b),
    )


def _query_key(a: Heads, b: Heads) -> Tensor:
    pairs = a.Q.flatten(1, 2), b.Q.flatten(1, 2), a.K, b.K
    return between_pairs(*pairs) if a.rotary else between(*pairs)


def _middle_basis(
    a: Heads, b: Heads, ours: WeightBatch, theirs: WeightBatch, rounding: float, fix_ones: bool
) -> Tensor | None:
    """The basis that attention writes in: first from V O, then from all that reads it as well.

    V O is taken in an orthonormal basis of what their V reads, where ours needs no N.
    """
    q, r = torch.linalg.qr(b.V)
    ours_rows = torch.einsum("gji,gjv,gmvx->gmix", q, a.V, a.O).flatten(0, 2)
    theirs_rows = torch.einsum("gij,gmjx->gmix", r, b.O).flatten(0, 2)
    stored = torch.einsum("gij,gmjx->gmi", r.square(), b.O.square()).sqrt().flatten()
    first = find_basis(
        ours_rows,
        theirs_rows,
        permutation=False,
        rounding=rounding,
        fix_ones=fix_ones,
        sizes=stored,
    )
    turned = ours if first is None else rotated(ours, (None, first, None))
    order, _ = _neurons(turned, theirs, outputs=False)
    one, two = (
        rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-300)
        for rows in (_rows(ours, "A")[order], _rows(theirs, "A"))
    )
    return find_basis(
        torch.cat([ours_rows / stored[:, None], one]),
        torch.cat([theirs_rows / stored[:, None], two]),
        permutation=False,
        rounding=rounding,
        fix_ones=fix_ones,
        sizes=torch.ones(len(stored) + len(one), dtype=torch.float64),
    )


def _last_basis(
    ours: WeightBatch, theirs: WeightBatch, rounding: float, fix_ones: bool
) -> Tensor | None:
    rows = [
        torch.cat([batch["B"][0, 0, 0].flatten(0, -2), batch["bB"][0, 0, 0, None]])
        for batch in (ours, theirs)
    ]
    return find_basis(rows[0], rows[1], permutation=False, rounding=rounding, fix_ones=fix_ones)


def _neurons(ours: WeightBatch, theirs: WeightBatch, outputs: bool) -> tuple[Tensor, Tensor | None]:
    """Their order in ours, and in their order the scales between them, if neurons have any."""
    if "gate" in theirs:
        order = match_neurons(_rows(ours, "gate"), _rows(theirs, "gate"))
        return order, _scales(ours, theirs, "up", "down", order)
    if "s" not in theirs.spec.block.axes:
        names = ("A", "bA", "B") if outputs else ("A", "bA")
        return match_neurons(_stacked(ours, names), _stacked(theirs, names)), None
    features = []
    for batch in (ours, theirs):
        into = _stacked(batch, ("A", "bA"), plain=True)
        size = into.norm(dim=1, keepdim=True).clamp_min(1e-300)
        out = _rows(batch, "B") * size
        part = [into / size, out / _rms(out)] if outputs else [into / size]
        features.append(torch.cat(part, dim=1))
    order = match_neurons(*features)
    return order, _scales(ours, theirs, "A", "B", order, positive=True, outputs=outputs)


def _scales(
    ours: WeightBatch,
    theirs: WeightBatch,
    into: str,
    out: str,
    order: Tensor,
    *,
    positive: bool = False,
    outputs: bool = True,
) -> Tensor:
    """The numbers by which a neuron's input is larger and its output smaller: "a 1 1" or "a 1"."""
    a, b = _rows(ours, into)[order], _rows(theirs, into)
    forth = (a * b).sum(1) / a.square().sum(1).clamp_min(1e-300)
    scale = forth
    if outputs:
        a, b = _rows(ours, out)[order], _rows(theirs, out)
        back = (a * b).sum(1) / a.square().sum(1).clamp_min(1e-300)
        both = (forth + 1 / back) / 2
        scale = torch.where(torch.isfinite(both) & (both != 0), both, forth)
    usable = torch.isfinite(scale) & ((scale > 0) if positive else (scale != 0))
    scale = torch.where(usable, scale, torch.ones_like(scale))
    return scale.unsqueeze(-1) if positive else scale[:, None, None]


def _rows(batch: WeightBatch, name: str) -> Tensor:
    """A row for each neuron."""
    tensor = batch[name][0, 0, 0]
    if name in ("A", "gate", "up"):
        return tensor.flatten(1).T  # x a (s)
    return tensor.flatten(0, -2) if tensor.dim() > 1 else tensor.unsqueeze(1)


def _stacked(batch: WeightBatch, names: tuple[str, ...], *, plain: bool = False) -> Tensor:
    """Rows of several tensors beside each other, each of the same weight."""
    parts = [
        batch[name][0, 0, 0].flatten().unsqueeze(1) if name == "bA" else _rows(batch, name)
        for name in names
    ]
    return torch.cat([part if plain else part / _rms(part) for part in parts], dim=1)


def _rms(tensor: Tensor) -> Tensor:
    return tensor.square().mean().sqrt().clamp_min(1e-300)


def _back(part: Tensor, order: Tensor) -> Tensor:
    """Parts given for the second block's units, for those of the first: out[order[i]] = in[i]."""
    moved = torch.empty_like(part)
    moved[order] = part
    return moved


def _diagonal(distances: Tensor) -> Tensor:
    """Of each head to its own partner, "g m"."""
    count, inner = distances.shape[:2]
    g, m = torch.arange(count)[:, None], torch.arange(inner)[None]
    return distances[g, m, g, m].clamp_min(0).sqrt()
